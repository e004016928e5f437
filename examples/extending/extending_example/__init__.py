"""Kinds for aggservice that live in a package of their own: one class per kind, named in the entry points."""
