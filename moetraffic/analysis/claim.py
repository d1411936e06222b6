"""Claims: conclusions about a run, each with its figure, interval and null test.

A figure by itself is not a conclusion.  A claim states one only if a test rejects the
hypothesis that the run shows it without having it; what is tested, and on which data,
is part of the claim.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum

LEVEL = 0.01
"""Significance level of the tests: a claim is stated from this p-value on."""

NAN = float("nan")

NOT_TESTED = "not tested: "
"""Beginning of the flag of a claim that was not tested, before the reason."""

SINCE = "of iterations from "
"""Beginning of the flag of a claim about the end of a run, before the iteration."""

NO_TRANSIENT = "no transient is seen"
"""Flag of a claim "converged" without level change or transient before the level."""

SAME = NOT_TESTED + "the same in every iteration"
"""Flag of a claim about a variation that a load or matrix does not have."""

ALL_EXPERTS = NOT_TESTED + "every token goes to every expert"
"""Flag of a claim about loads that cannot differ."""


class Outcome(Enum):
    """What a test decided."""

    STATED = "stated"  # the null hypothesis is rejected
    NO_EVIDENCE = "no evidence"  # it is not
    NOT_ENOUGH_DATA = "not enough data"  # the test would not find what there may be


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Conclusion about a run, and the test that it rests on."""

    name: str  # what is claimed, a word of the glossary: "converged", "periodic"
    about: str  # of what: "expert load of layer 0"
    subject: str = ""  # whose rows of a data frame it belongs to: "expert_load"
    horizon: int = -1  # iterations ahead; -1: no forecast
    outcome: Outcome
    statement: str  # the claim as a clause: "its level is stable from iteration 120 on"
    null: str  # hypothesis that the claim must reject: "a random walk of the shares"
    p: float = NAN  # of the null hypothesis, never 0; NaN where not tested
    figure: float = NAN  # size of what is claimed
    chance: float = NAN  # figure that is expected by chance
    unit: str = ""  # of the figure: "iterations", "share", "s"; "" for a ratio
    measure: str = ""  # what the figure is: "CV of the mean load"
    low: float = NAN  # 95% interval of the figure
    high: float = NAN
    used: int = 0  # observations: iterations, cycles or bursts
    left_out: int = 0  # observations that were not used
    needs: int = 0  # observations that are needed, where there are too few
    flags: tuple[str, ...] = ()  # limits: "at the bound of the search"

    def __post_init__(self) -> None:
        # smaller ones are 0 in floating point
        object.__setattr__(self, "p", max(self.p, sys.float_info.min))

    @property
    def stated(self) -> bool:
        """Whether the claim is made."""
        return self.outcome is Outcome.STATED

    @property
    def untested(self) -> str:
        """Why the claim was not tested; "" if it was."""
        reasons = (f for f in self.flags if f.startswith(NOT_TESTED))
        return next(reasons, "").removeprefix(NOT_TESTED)

    @property
    def result(self) -> str:
        """The outcome in words; "not tested" where no test was made."""
        return "not tested" if self.untested else self.outcome.value

    @property
    def since(self) -> int | None:
        """First iteration that the claim is of, if earlier ones are left out."""
        of = next((f for f in self.flags if f.startswith(SINCE)), None)
        return None if of is None else int(of.removeprefix(SINCE).split()[0])

    @property
    def sentence(self) -> str:
        """The outcome in one sentence.

        Examples
        --------
        >>> claim = Claim(
        ...     name="periodic",
        ...     about="expert load",
        ...     outcome=Outcome.NO_EVIDENCE,
        ...     statement="it repeats",
        ...     null="shuffled blocks",
        ...     p=0.4,
        ... )
        >>> claim.sentence
        'Expert load: no evidence of "periodic" (null: shuffled blocks, p = 0.4).'
        """
        subject = self.about[:1].upper() + self.about[1:]
        limits = f"; {', '.join(self.flags)}" if self.flags else ""
        if self.outcome is Outcome.NOT_ENOUGH_DATA:
            return (
                f'{subject}: not enough data for "{self.name}" '
                f"(needs {self.needs:,}, has {self.used:,}){limits}."
            )
        if self.untested:
            return f'{subject}: "{self.name}" was not tested: {self.untested}.'
        if self.p != self.p:
            test = f"(null: {self.null})"
        else:
            bound = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.2g}"
            test = f"(null: {self.null}, {bound})"
        if self.stated:
            return f"{subject}: {self.statement} {test}{limits}."
        return f'{subject}: no evidence of "{self.name}" {test}{limits}.'


def claim_of(claims: tuple[Claim, ...] | list[Claim], name: str) -> Claim | None:
    """Return the first claim of a name; None if there is none."""
    return next((claim for claim in claims if claim.name == name), None)
