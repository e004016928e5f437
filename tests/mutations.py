"""Random changes to JSON values and to text, for tests of parsers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


def mutated(value: Any, rng: random.Random, *, scalars: Sequence[Any], letters: str) -> Any:
    """Return a JSON value with one part replaced by one of ``scalars``, removed, renamed or repeated."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        choice = rng.random()
        if choice < 0.15:
            return {name: entry for name, entry in value.items() if name != key}
        if choice < 0.25:
            return {(name + rng.choice(letters) if name == key else name): entry for name, entry in value.items()}
        return value | {key: mutated(value[key], rng, scalars=scalars, letters=letters)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        if rng.random() < 0.3:
            return value * 30
        changed = mutated(value[place], rng, scalars=scalars, letters=letters)
        return [*value[:place], changed, *value[place + 1 :]]
    return rng.choice(scalars)


def mutated_text(text: str, rng: random.Random, *, letters: str) -> str:
    """Return text with a few characters inserted, deleted or replaced by ``letters``, or with its end cut off."""
    out = list(text)
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(out) + 1)
        choice = rng.random()
        if choice < 0.4:
            out.insert(place, rng.choice(letters))
        elif choice < 0.7:
            del out[place : place + rng.choice([1, 1, 4])]
        else:
            out[place : place + 1] = [rng.choice(letters)]
    changed = "".join(out)
    return changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.1 else changed
