"""Command-line entry points of the repository and what they are made of."""
