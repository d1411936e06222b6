"""Nothing is named wrongly in programs with any order of micro-batches and chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from .schedules import Schedule, draw, judge, undecidable

PLAIN = Schedule(steps=4, layers=3, micro_batches=4, seed=1)


def wrong(programs: Iterable[Schedule]) -> tuple[Counter[str], list[str]]:
    """What is named wrongly in programs, where facts can tell."""
    found: Counter[str] = Counter()
    examples = []
    for of in programs:
        judgment = judge(of)
        mine = {w: n for w, n in judgment.wrong.items() if w not in undecidable(of)}
        found.update(mine)
        if mine:
            examples.append(f"{of} {judgment.first[:2]}")
    return found, examples[:3]


def test_nothing_is_named_wrongly() -> None:
    assert wrong(map(draw, range(12))) == ({}, [])


@pytest.mark.slow
def test_nothing_is_named_wrongly_in_a_thousand_programs() -> None:
    assert wrong(map(draw, range(12, 1012))) == ({}, [])


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"evaluate": 2, "marks": "step"},
        {"evaluate": 1, "marks": "", "micro_batches": 2},
        {"recompute": True, "counts": True},
        {"even": True, "counts": True, "first_gradient": False},
        {"links": False, "probabilities": True},
    ],
)
def test_plain_programs_are_named_in_full(changed: dict[str, int]) -> None:
    judgment = judge(replace(PLAIN, **changed))
    assert (judgment.wrong, judgment.unnamed) == ({}, {})


@pytest.mark.parametrize("marks", ["step", "optimizer", ""])
def test_interleaved_micro_batches_have_no_layers_and_no_evaluation(marks: str) -> None:
    judgment = judge(replace(PLAIN, order="dualpipe", marks=marks))
    assert judgment.wrong == {}
    assert judgment.unnamed["layer"] == judgment.every["layer"]
    assert judgment.unnamed["direction"] == 0


def test_a_thread_that_communicates_leaves_phases_unknown() -> None:
    judgment = judge(replace(PLAIN, thread=True))
    assert judgment.wrong == {}
    assert judgment.unnamed["phase"] == judgment.every["phase"]
