"""Planning: how to split ε over overlapping queries so that each meets its target."""
