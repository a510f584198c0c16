"""Template tags and filters of the whole site."""
