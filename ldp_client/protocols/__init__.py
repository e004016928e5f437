"""The local randomizers, as one client and as a fleet."""
