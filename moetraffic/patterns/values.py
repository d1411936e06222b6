"""Numbers of a configuration: each may be one, or an array that broadcasts."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.errors import LayoutError

Values: TypeAlias = Any
"""A number, or anything that numpy makes an array of; all broadcast together."""


def numbers(name: str, given: Values) -> Float64:
    """What was given as float64, any shape.

    Raises
    ------
    LayoutError
        If it is no number.
    """
    if type(given) in (int, float, bool, np.float64) and given == given:
        return np.float64(given)  # type: ignore[return-value]  # a number is an array
    try:
        made = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise LayoutError(
            f"{name} is a number or an array of numbers, but is {given!r}: change it"
        ) from None
    if np.isnan(made).any():
        raise LayoutError(f"{name} must be known, but some of it is NaN: change it")
    return made


def anywhere(condition: Values) -> bool:
    """Whether a condition, or a number other than 0, is somewhere in an array."""
    return bool(np.any(condition) if getattr(condition, "ndim", 0) else condition)


def where(condition: Values, one: Values, other: Values) -> Values:
    """``np.where``; of one condition it is one of the values as it is, which takes a
    tenth of the time."""
    if getattr(condition, "ndim", 0):
        return np.where(condition, one, other)
    return one if condition else other
