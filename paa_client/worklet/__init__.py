"""Shared Storage worklets: what they may call, and the walls around them."""
