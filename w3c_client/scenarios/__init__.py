"""Scenarios of W3C's simulator: read them, run them against ``Browser``, and compare results and stores."""
