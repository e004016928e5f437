"""How well an observer can follow one client over time."""
