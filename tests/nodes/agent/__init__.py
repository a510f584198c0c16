"""Tests of the node agent: its decisions with stand-ins, and its deeds on real engines (marked rig)."""
