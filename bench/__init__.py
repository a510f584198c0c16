"""Measurements of a whole Lessor; each is a script, bench/README.md says what it measures."""
