"""Kits: per kind, the suite that every built-in entry passes and that you call on your own entry.

A check returns nothing, or raises ``KitFailure`` with a sentence that says what is wrong. Kits need the library alone
and run under pytest or as plain functions.
"""
