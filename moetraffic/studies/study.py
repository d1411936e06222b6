"""Result of recomputing a published study: tables, and what is not reproducible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsFloat

from moetraffic.tables import Table


@dataclass(frozen=True, kw_only=True)
class Study:
    """Recomputed tables of a published study, and what is not reproducible."""

    name: str  # as ``moetraffic reproduce NAME`` has it
    title: str
    source: str  # authors, venue, year
    tables: tuple[Table, ...]
    not_reproducible: tuple[str, ...]  # what, because of what
    notes: tuple[str, ...]  # remarks on the tables


def compared(
    published: float | None, ours: SupportsFloat, *digits: int
) -> tuple[float | None, float, float | None]:
    """Return a published value, the recomputed one and its relative error.

    Parameters
    ----------
    published
        None: the study does not have it.
    ours
        The recomputed value.
    digits
        Decimal digits of the recomputed value and of the error; by default all.
    """
    value = float(ours)
    error = None if published is None else value / published - 1
    if digits:
        value = round(value, digits[0])
        error = None if error is None else round(error, digits[1])
    return published, value, error


def rounded(values: Iterable[SupportsFloat], digits: int) -> tuple[float, ...]:
    """Round values to a number of decimal digits, for the cells of a row."""
    return tuple(round(float(value), digits) for value in values)
