"""Lists of layers and ranges of numbers in the words of a summary."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, trunc
from typing import TYPE_CHECKING

from moetraffic.units import rank_span

if TYPE_CHECKING:
    from moetraffic.analysis import ExchangeAnalysis

SHORT = 24
"""Characters of a list of layers, above which they are counted."""


def some_layers(
    some: Sequence[ExchangeAnalysis], exchanges: Sequence[ExchangeAnalysis]
) -> str:
    """Name some layers, or count them where there are many; "" for all."""
    chosen = {(e.layer, e.group) for e in some}
    if len(chosen) == len(exchanges):
        return ""
    where = _where([e for e in exchanges if (e.layer, e.group) in chosen], exchanges)
    if len(where) <= SHORT:
        return where
    return f"{len(chosen)} of {len(exchanges)} {unit_of(exchanges)}"


def counted(
    what: str, some: Sequence[ExchangeAnalysis], exchanges: Sequence[ExchangeAnalysis]
) -> str:
    """Count the layers of a claim, "skewed (4/12)", unless it is of all."""
    every = len(some) == len(exchanges)
    return what if every else f"{what} ({len(some)}/{len(exchanges)})"


def unit_of(exchanges: Sequence[ExchangeAnalysis]) -> str:
    """Name what is counted: a layer may have an exchange in each of several groups."""
    alone = len({e.layer for e in exchanges}) == len(exchanges)
    return "layers" if alone else "layers and groups"


def _where(
    some: Sequence[ExchangeAnalysis], exchanges: Sequence[ExchangeAnalysis]
) -> str:
    """Name the layers of some exchanges, with ranks where groups of a layer differ."""
    chosen = {(e.layer, e.group) for e in some}
    whole, parts = [], []
    for layer in dict.fromkeys(e.layer for e in some):
        of_layer = [e for e in exchanges if e.layer == layer]
        if all((layer, e.group) in chosen for e in of_layer):
            whole.append(layer)
        else:
            ranks = (rank_span(e.ranks) for e in some if e.layer == layer)
            parts.append(f"layer {layer} on ranks {', '.join(ranks)}")
    return ", ".join([*([layers_of(whole)] if whole else []), *parts])


def layers_of(layers: Sequence[int]) -> str:
    """Name some layers by their numbers."""
    numbers = sorted(set(layers))
    return f"layer{'s' * (len(numbers) > 1)} {rank_span(numbers)}"


def range_of(values: Sequence[float], form: str) -> str:
    """Format the smallest and the largest of some values.

    Examples
    --------
    >>> range_of([0.31, 0.996], ".0%"), range_of([1.0], ".0%")
    ('31 to 99.6%', '100%')
    """
    ends = list(dict.fromkeys(_end(v, form) for v in (min(values), max(values))))
    return " to ".join([*(end.removesuffix("%") for end in ends[:-1]), ends[-1]])


def _end(value: float, form: str) -> str:
    """Format a value; a share below 1 is never rounded up to 100%."""
    text = format(value, form)
    if text.lstrip("+-") == "100%" and abs(value) < 1:
        return format(trunc(value * 1000) / 1000, form.replace(".0", ".1"))
    return text


def dropped_copies(shares: Sequence[float]) -> str:
    """State the share of token copies that were dropped; NaN is unknown.

    Examples
    --------
    >>> dropped_copies([0.0]), dropped_copies([0.003, 0.047])
    ('no token copy dropped', '0.3 to 4.7% of token copies dropped')
    """
    if any(map(isnan, shares)):
        return "share of dropped token copies unknown"
    if not any(shares):
        return "no token copy dropped"
    return f"{range_of(shares, '.1%')} of token copies dropped"


def detailed(what: str, inside: str) -> str:
    """Put details behind a name in parentheses, if there are any."""
    return f"{what} ({inside})" if inside else what


def joined(*details: str) -> str:
    """Join the details that there are."""
    return "; ".join(filter(None, details))


def rounded_up(needs: int) -> int:
    """Round a number of observations, which differs from run to run, up to 2 digits."""
    unit = int(10 ** max(len(str(needs)) - 2, 0))
    return -(-needs // unit) * unit
