"""Conversion of dataclasses to JSON and back.

NaN is null in JSON, and null is NaN where a float is expected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from moetraffic.errors import ReplayError

Record = TypeVar("Record")


def plain(value: Any) -> Any:
    """Convert dataclasses to dicts, tuples to lists, and values not finite to None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(kind: str, value: Any, *, indent: int | None = None) -> str:
    """Format a dataclass as a JSON object with an entry ``kind``."""
    return json.dumps({"kind": kind, **plain(value)}, indent=indent)


def from_json(of: type[Record], text: str) -> Record:
    """Read a dataclass that :func:`to_json` wrote.

    Raises
    ------
    ReplayError
        If the document is not such an object.
    """
    try:
        made = _typed(of, json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise ReplayError(
            f"a record of {of.__name__} is a JSON object of its fields, but is not "
            f"({error}): give a file that moetraffic replay wrote"
        ) from None
    assert isinstance(made, of)
    return made


def _typed(of: Any, value: Any) -> Any:
    """Convert a JSON value to a type, such as a dataclass or a tuple."""
    origin, inner = get_origin(of), get_args(of)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        (kind,) = (each for each in inner if each is not NoneType)
        return _typed(kind, value)
    if is_dataclass(of) and isinstance(of, type):
        hints = get_type_hints(of)
        named = (f for f in fields(of) if f.init)
        return of(**{f.name: _typed(hints[f.name], value[f.name]) for f in named})
    if origin is tuple:
        return tuple(_typed(inner[0], each) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        return {_typed(inner[0], k): _typed(inner[1], v) for k, v in value.items()}
    if of is float:
        return float("nan") if value is None else float(value)
    if of in (int, str, bool):
        return of(value)
    raise TypeError(f"{of} is not written as JSON")
