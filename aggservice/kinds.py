"""Tables of kinds: what people change is one class, and one table maps its name to it.

A table holds names and what they stand for: built-in entries, entries of installed packages (entry points of the
table's group) and, where the caller trusts the text, ``"module:Name"``. Built-in entries may be written as text too,
so that a process imports only those that it uses. Nothing but the table knows the names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class KindError(ValueError):
    """A name that a table does not have, or an entry that is not what the table holds. The text says what to write."""


class Kinds(Generic[T]):
    """The table of one kind, such as ``Kinds("metric", base=Metric, builtin={...})``.

    Entries are subclasses of ``base``, or instances of it. Installed packages add entries under the entry point group
    ``aggservice.<title>s``, in lower case and with underscores.
    """

    def __init__(self, title: str, *, base: type, builtin: Mapping[str, T | str], plural: str = "") -> None:
        self.title = title
        self.group = f"aggservice.{(plural or title + 's').lower().replace(' ', '_').replace('-', '_')}"
        self._base = base
        self._builtin = dict(builtin)
        self._added: dict[str, T] = {}

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        return {one.name: one for one in entry_points(group=self.group)}

    @property
    def names(self) -> tuple[str, ...]:
        """All names: built-in ones in their order, then installed and added ones."""
        return (*self._builtin, *sorted((self._installed.keys() | self._added.keys()) - self._builtin.keys()))

    @property
    def outside(self) -> tuple[str, ...]:
        """The names that are not built in."""
        return self.names[len(self._builtin) :]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._installed or name in self._added

    def __getitem__(self, name: str) -> T:
        """Return the entry of a name, built in or installed; KindError with the nearest name if there is none."""
        if name in self._builtin:
            entry = self._builtin[name]
            if isinstance(entry, str):
                entry = self._builtin[name] = self._load(entry)
            return entry
        if name in self._added:
            return self._added[name]
        if name in self._installed:
            one = self._installed[name]
            by = one.dist.name if one.dist else "a package"
            try:
                found = one.load()
            except (ImportError, AttributeError) as problem:
                raise KindError(
                    f"the {self.title} {name!r}, which {by} installs, cannot be imported: {problem}"
                ) from problem
            return self.add(name, self._checked(found, f"{name}, which {by} installs,"))
        near = get_close_matches(str(name), self.names, 1)
        raise KindError(
            f"there is no {self.title} {name!r}: "
            + (f"did you mean {near[0]!r}? " if near else "")
            + f"choose one of {', '.join(self.names)}"
        )

    def add(self, name: str, entry: T) -> T:
        """Add an entry for the life of this process; KindError if the name stands for something else."""
        entry = self._checked(entry, repr(entry))
        taken = self._added.get(name) or (self[name] if name in self._builtin else None)
        if taken is not None and taken is not entry:
            raise KindError(f"the {self.title} {name!r} exists ({self.origin(name)}): choose another name")
        self._added[name] = entry
        return entry

    def find(self, text: str, *, folder: Path | None = None) -> T:
        """Return the entry of a name or of ``"module:Name"``; only for texts that may run code.

        ``folder`` is where a module may lie that is not installed, such as the folder of a campaign file. An entry
        with a ``name`` is added under it, so that what is written down with that name can be read again.
        """
        if ":" not in text:
            return self[text]
        if folder is not None and str(folder) not in sys.path:
            sys.path.append(str(folder))
        found = self._load(text)
        name = getattr(found, "name", None)
        return self.add(name, found) if isinstance(name, str) else found

    def origin(self, name: str) -> str:
        """Return where an entry comes from: ``built in``, or the installed package and its version."""
        if name in self._builtin:
            return "built in"
        if name not in self._installed:
            return "added by this process"
        dist = self._installed[name].dist
        return "installed" if dist is None else f"{dist.name} {dist.version}"

    def _load(self, text: str) -> T:
        module, _, name = text.partition(":")
        try:
            found: Any = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as problem:
            raise KindError(
                f"the {self.title} {text!r} cannot be imported: {problem}. Write module:Name, with a module that "
                "Python finds"
            ) from problem
        return self._checked(found, repr(text))

    def _checked(self, found: Any, what: str) -> T:
        good = issubclass(found, self._base) if isinstance(found, type) else isinstance(found, self._base)
        if not good:
            raise KindError(
                f"{what} is not a {self.title}: make it a subclass or an instance of "
                f"{self._base.__module__}.{self._base.__qualname__}"
            )
        entry: T = found
        return entry
