"""Settings declared once: a field of a dataclass carries how it is read, its default, its range and its sentence.

``jobs: int = whole("jobs that run at once", default=4, least=1, most=1000)`` declares a setting. ``read_settings``
builds the dataclass from a table of a file; ``settings_table`` of the tests writes the table of its page. A bound, an
option or a default that depends on other values is a function of what is ``known``: the fields that were read before,
what the caller gave, the same of the table around, and the ``section`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from aggservice.files.toml import Section
from aggservice.kinds import KindError, Kinds

T = TypeVar("T")

Known = SimpleNamespace
"""What was read before a setting, by name."""

REQUIRED: Final = object()
"""The default of a setting that a file must give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How one setting is read and described. ``key`` is its name in files, if that is not the field's.

    ``default`` is a value or a function of what is known; ``shown`` is its text in the docs, ``allowed`` that of the
    values that are good. ``convert`` is applied to what was read. Where ``when`` is false of what is known, the key is
    not a setting, and the field has its default.
    """

    says: str
    read: Callable[[Section, str, Known], Any]
    allowed: str
    default: Any = REQUIRED
    key: str = ""
    shown: str = ""
    convert: Callable[[Any], Any] | None = None
    when: Callable[[Any], bool] | None = None

    def value(self, section: Section, key: str, known: Known) -> Any:
        """Return the value of the key, or the default if it is absent and there is one."""
        absent = (self.when is not None and not self.when(known)) or section.take(key) is None
        if absent and (default := _now(self.default, known)) is not REQUIRED:
            return default
        found = self.read(section, key, known)
        return found if self.convert is None else self.convert(found)


def setting(
    says: str, *, read: Callable[[Section, str, Known], Any], allowed: str, factory: Any = MISSING, **more: Any
) -> Any:
    """Declare a setting with a reader of its own; ``more`` are the other fields of ``Setting``.

    ``factory`` makes the field's default for those who build the dataclass without a file.
    """
    one = Setting(says=says, read=read, allowed=allowed, **more)
    constant = one.default is not REQUIRED and not callable(one.default) and factory is MISSING
    return field(default=one.default if constant else MISSING, default_factory=factory, metadata={"setting": one})


def _now(value: Any, known: Known) -> Any:
    return value(known) if callable(value) else value


def text(says: str, *, example: str = "", **more: Any) -> Any:
    """Declare a string; ``example`` is what the error shows if it is missing."""
    return setting(says, read=lambda section, key, _: section.text(key, example=example), **{"allowed": "text", **more})


def choice(says: str, options: Sequence[str] | Callable[[Any], Sequence[str]], **more: Any) -> Any:
    """Declare a string that is one of ``options``."""
    allowed = "one of those" if callable(options) else ", ".join(f"`{one}`" for one in options)
    return setting(
        says, read=lambda section, key, known: section.choice(key, _now(options, known)), **{"allowed": allowed, **more}
    )


def entry_of(section: Section, key: str, name: str, table: Kinds[Any]) -> Any:
    """Return an entry by its name. A text that somebody else gave cannot name a module, because that would run it."""
    try:
        return table.find(name, folder=section.folder) if section.files is None else table[name]
    except KindError as problem:
        section.refuse(key, f"is {name!r}", str(problem)[:1].upper() + str(problem)[1:])


def kind(says: str, table: Kinds[Any], **more: Any) -> Any:
    """Declare an entry of a table: a name or, in files that may name any path, ``"module:Name"``."""

    def read(section: Section, key: str, known: Known) -> Any:
        return entry_of(section, key, section.text(key, example=table.names[0]), table)

    if isinstance(name := more.get("default"), str):
        more |= {"default": lambda known: table[name], "shown": f"`{name}`"}
    return setting(says, read=read, **{"allowed": f"a {table.title}", **more})


def kinds(says: str, table: Kinds[Any], **more: Any) -> Any:
    """Declare a list of entries of a table, each named as ``kind`` reads it; by default there is none."""

    def read(section: Section, key: str, known: Known) -> tuple[Any, ...]:
        return tuple(entry_of(section, key, name, table) for name in section.texts(key))

    return setting(says, read=read, **{"allowed": f"list of {table.title}s", "default": (), **more})


def whole(says: str, *, least: int | Callable[[Any], int], most: int | Callable[[Any], int], **more: Any) -> Any:
    """Declare a whole number within bounds."""
    return setting(
        says,
        read=lambda section, key, known: section.whole(key, None, least=_now(least, known), most=_now(most, known)),
        **{"allowed": _range(least, most), **more},
    )


def number(says: str, *, least: float, most: float, above: bool = False, **more: Any) -> Any:
    """Declare a number from ``least`` to ``most``; with ``above`` it must be greater than ``least``."""
    return setting(
        says,
        read=lambda section, key, _: section.number(key, None, least=least, most=most, above=above),
        **{"allowed": f"{'above ' * above}{least:g} to {most:g}", **more},
    )


def exact(says: str, *, above: int, most: int | Callable[[Any], int], default: Any, **more: Any) -> Any:
    """Declare an exact number above ``above`` and at most ``most``: a whole number or decimal text."""
    return setting(
        says,
        read=lambda section, key, known: section.exact(
            key, Fraction(1), above=Fraction(above), most=Fraction(_now(most, known))
        ),
        default=default,
        **{"allowed": f"above {above}" if callable(most) else f"above {above} to {most:,}", **more},
    )


def amount(says: str, *, zero: bool | Callable[[Any], bool] = False, **more: Any) -> Any:
    """Declare a privacy amount as decimal text, greater than 0; ``zero`` also allows 0."""
    if isinstance(default := more.get("default"), str):
        more.setdefault("shown", f'"{default}"')
    return setting(
        says,
        read=lambda section, key, known: section.amount(key, zero=_now(zero, known)),
        **{"allowed": "decimal text", **more},
    )


def flag(says: str, *, default: bool = False, **more: Any) -> Any:
    """Declare a setting that is true or false."""
    return setting(
        says,
        read=lambda section, key, _: section.flag(key, default),
        default=default,
        **{"allowed": "true, false", **more},
    )


def texts(says: str, *, any_list: bool = False, **more: Any) -> Any:
    """Declare a list of strings, at least one and all different; ``any_list`` allows empty lists and repeats."""
    return setting(
        says, read=lambda section, key, _: section.texts(key, any_list=any_list), **{"allowed": "list of texts", **more}
    )


def choices(
    says: str, options: Sequence[str] | Callable[[Any], Sequence[str]], *, any_list: bool = False, **more: Any
) -> Any:
    """Declare a list of strings as ``texts`` does; each must be one of ``options``."""
    allowed = "list of those" if callable(options) else "list of " + ", ".join(f"`{one}`" for one in options)
    return setting(
        says,
        read=lambda section, key, known: section.choices(key, _now(options, known), any_list=any_list),
        **{"allowed": allowed, **more},
    )


def day(says: str, *, default: int | Callable[[Any], int], **more: Any) -> Any:
    """Declare a date, or a date and time, as milliseconds since 1970; a date alone means its midnight in UTC."""
    return setting(
        says, read=lambda section, key, _: section.day_ms(key, 0), default=default, **{"allowed": "date", **more}
    )


def path(says: str, *, needs: str = "", **more: Any) -> Any:
    """Declare a path below the folder of the file, which need not exist. ``needs`` says what to name if it must."""

    def read(section: Section, key: str, known: Known) -> Any:
        if (found := section.path_to(key)) is None:
            section.missing(key, f'Write {key} = "…": {needs}')
        return found

    if not needs:
        more.setdefault("default", None)
    return setting(says, read=read, **{"allowed": "path", **more})


def table(says: str, of: type, **more: Any) -> Any:
    """Declare a table with settings of its own; an absent one has its defaults, or is the ``default`` given."""
    return setting(
        says, read=lambda section, key, known: read_settings(section.section(key), of, known), allowed="table", **more
    )


def tables(says: str, of: type, **more: Any) -> Any:
    """Declare an array of tables, which may be absent. It has no row in the docs if it says nothing."""
    return setting(
        says,
        read=lambda section, key, known: tuple(read_settings(one, of, known) for one in section.sections(key)),
        allowed="tables",
        default=(),
        **more,
    )


def read_settings(
    section: Section, of: type[T], around: Known | None = None, /, *, done: bool = True, **given: Any
) -> T:
    """Return the dataclass that a table describes, checked by its method ``check(section, known)`` if it has one.

    ``given`` are fields that the table does not hold, and other values that declarations use. Unless ``done`` is
    false, because others read the same table too, keys that are not settings are refused.
    """
    known = Known(**{**vars(around or Known()), **given, "section": section})
    settings: dict[str, Setting] = {
        one.name: one.metadata["setting"]
        for one in fields(of)  # type: ignore[arg-type]
        if one.name not in given and "setting" in one.metadata
    }
    for name, one in settings.items():
        if one.when is None:
            section.take(one.key or name)  # a key that exists is no misspelling of one that is missing
    for name, one in settings.items():
        setattr(known, name, one.value(section, one.key or name, known))
    names = [one.name for one in fields(of) if one.name in given or one.name in settings]  # type: ignore[arg-type]
    built = of(**{name: getattr(known, name) for name in names})
    if (check := getattr(built, "check", None)) is not None:
        check(section, known)
    if done:
        section.done()
    return built


def _range(least: Any, most: Any) -> str:
    if callable(most):
        return "whole" if callable(least) else f"{least:,} or more"
    return f"up to {most:,}" if callable(least) else f"{least:,} to {most:,}"
