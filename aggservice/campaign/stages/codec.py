"""Stages in files: dataclasses of columns as one ``.npz`` of arrays and a JSON outline; nothing in it is executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.files.atomic import whole_file

_OUTLINE = "outline"
_OURS = ("aggservice.campaign.", "aggservice.engine.", "aggservice.wire.")
"""Only dataclasses and enumerations of these packages are read back."""


def write_stage(path: Path, value: Any) -> None:
    """Write a value to ``path``, whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {}
    outline = json.dumps(_outline(value, arrays), allow_nan=True).encode()
    arrays[_OUTLINE] = np.frombuffer(outline, dtype=np.uint8)
    with whole_file(path) as staged, staged.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def read_stage(path: Path) -> Any:
    """Return the value that ``write_stage`` wrote; ``ValueError`` for a file that it did not write."""
    try:
        with np.load(path, allow_pickle=False) as file:
            outline = json.loads(file[_OUTLINE].tobytes())
            return _value(outline, lambda name: file[name])
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, OSError, EOFError) as problem:
        raise ValueError(f"{path} is not a finished stage of this version: delete it") from problem


def _outline(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Enum):
        return {"enum": _name(type(value)), "member": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: _outline(getattr(value, field.name), arrays) for field in fields(value)}
        return {"class": _name(type(value)), "fields": inner}
    if isinstance(value, Mapping):
        return {"mapping": [[_outline(key, arrays), _outline(one, arrays)] for key, one in value.items()]}
    if isinstance(value, (tuple, list)):
        return {type(value).__name__ if type(value) is list else "tuple": [_outline(one, arrays) for one in value]}
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a stage cannot hold a {type(value).__name__}: use arrays, text, numbers or dataclasses")


def _value(outline: Any, array: Callable[[str], NDArray[Any]]) -> Any:
    if not isinstance(outline, dict):
        return outline
    if "array" in outline:
        return array(outline["array"])
    if "enum" in outline:
        return _class(outline["enum"])[outline["member"]]
    if "class" in outline:
        return _class(outline["class"])(**{key: _value(one, array) for key, one in outline["fields"].items()})
    if "mapping" in outline:
        return {_value(key, array): _value(one, array) for key, one in outline["mapping"]}
    if "fraction" in outline:
        return Fraction(outline["fraction"])
    if "list" in outline:
        return [_value(one, array) for one in outline["list"]]
    return tuple(_value(one, array) for one in outline["tuple"])


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_OURS):
        raise TypeError(f"a stage cannot hold a {kind.__qualname__}: use classes of this project")
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> Any:
    module, _, kind = name.partition(":")
    if not module.startswith(_OURS):
        raise TypeError(f"a stage cannot hold a {name}")
    found = getattr(import_module(module), kind)
    if not (isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))):
        raise TypeError(f"a stage cannot hold a {name}")
    return found
