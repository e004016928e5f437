"""Neighbour games, each built to expose a class of faults: what is sent, asked and seen in two worlds."""
