"""Rules of a parallel run, each once for one layout and for arrays of layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from moetraffic.errors import LayoutError
from moetraffic.spelling import check_choice

from .values import Values, anywhere


class Rule(NamedTuple):
    """A rule, where it is broken, and what to do then."""

    broken: Values  # bool, of the values' common shape
    text: str  # "rule: remedy", with a place {} for each of the values
    values: tuple[Values, ...]

    @property
    def sentence(self) -> tuple[str, str]:
        """The rule with the values that break it first, and the remedy."""
        rule, _, remedy = self.text.rpartition(": ")
        return rule.format(*(self._first(v) for v in self.values)), remedy

    def _first(self, value: Values) -> str:
        if isinstance(value, str) or not np.ndim(self.broken):
            return _figure(value)
        of = np.broadcast_to(value, np.shape(self.broken))
        return _figure(of[np.asarray(self.broken)].flat[0])


def _figure(value: Values) -> str:
    return value if isinstance(value, str) else f"{float(value):.12g}"


Broken = tuple[str, str]
"""A rule that is broken, with its values, and the remedy."""


def unmet(*rules: tuple[bool, str]) -> list[Broken]:
    """Those of some rules that are not kept: whether it is, and "rule: remedy"."""
    broken = (text.rpartition(": ") for kept, text in rules if not kept)
    return [(rule, remedy) for rule, _, remedy in broken]


def positive(size: Values, option: str) -> Rule:
    """A size is 1 or more."""
    remedy = f"give --{option} a positive number"
    return Rule(
        size < 1, f"{option} must be at least 1, but is {{}}: {remedy}", (size,)
    )


def choose(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is none of those that are known.

    Raises
    ------
    LayoutError
        With the known names, and the nearest of them.
    """
    check_choice(what, name, known, LayoutError)


def sentences(rules: Sequence[Rule]) -> list[Broken]:
    """Those that are broken, with their remedies."""
    return [rule.sentence for rule in rules if anywhere(rule.broken)]


def refuse(rules: Sequence[Rule]) -> None:
    """Refuse what breaks a rule anywhere.

    Raises
    ------
    LayoutError
        Of the first rule that is broken.
    """
    for rule, remedy in sentences(rules):
        raise LayoutError(f"{rule}: {remedy}")
