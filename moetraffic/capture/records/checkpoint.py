"""Convert the state of an object to JSON values and back.

Only numbers, text, None, lists, tuples, dicts and sets are converted: a type that is
read from a file is never imported or called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Position = tuple[int, int]  # file of the log, and number of records taken of it

_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    kind.__name__: kind for kind in (list, tuple, set, dict)
}


def plain(thing: object) -> dict[str, Any]:
    """Return the attributes of an object as JSON values.

    Raises
    ------
    TypeError
        If an attribute is of a type that is not converted.
    """
    return {name: _encoded(value) for name, value in vars(thing).items()}


def restore(thing: object, state: dict[str, Any]) -> None:
    """Set the attributes of an object to those that :func:`plain` returned."""
    for name, value in state.items():
        if name in vars(thing):
            setattr(thing, name, _decoded(value))


def _encoded(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value).__name__
    if kind not in _CONTAINERS:
        raise TypeError(f"a {kind} cannot be part of a checkpoint")
    parts = value.items() if isinstance(value, dict) else value
    return {kind: [_encoded(part) for part in parts]}


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    return _CONTAINERS[kind](_decoded(part) for part in parts)
