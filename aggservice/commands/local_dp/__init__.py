"""Commands of longitudinal local DP: running protocols, and tracking."""
