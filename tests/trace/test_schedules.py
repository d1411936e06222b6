"""Nothing is named wrongly in programs with any order of micro-batches and chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from .schedules import Schedule, draw, judge

PLAIN = Schedule(steps=4, layers=3, micro_batches=4, seed=1, block="layer")


def wrong(programs: Iterable[Schedule]) -> tuple[Counter[str], list[str]]:
    """What is named wrongly in programs, with three examples."""
    found: Counter[str] = Counter()
    examples = []
    for of in programs:
        judgment = judge(of)
        found.update(judgment.wrong)
        if judgment.wrong:
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
        {"probabilities": True},
    ],
)
def test_plain_programs_are_named_in_full(changed: dict[str, int]) -> None:
    judgment = judge(replace(PLAIN, **changed))
    assert (judgment.wrong, judgment.unnamed) == ({}, {})


@pytest.mark.parametrize("marks", ["step", "optimizer", ""])
def test_interleaved_micro_batches_have_layers_and_no_evaluation(marks: str) -> None:
    judgment = judge(replace(PLAIN, order="dualpipe", marks=marks))
    assert (judgment.wrong, judgment.unnamed) == ({}, {})


@pytest.mark.parametrize(
    "changed",
    [
        {"block": ""},
        {"block": "model"},  # several layers or chunks in one call
    ],
)
def test_layers_are_unknown_without_their_modules(
    changed: dict[str, str],
) -> None:
    judgment = judge(replace(PLAIN, reduces=False, **changed))
    assert judgment.wrong == {}
    assert judgment.unnamed["layer"] == judgment.every["layer"]


def test_two_passes_of_equal_parts_are_not_one_of_twice_the_layers() -> None:
    equal = {"order": "1f1b", "even": True, "counts": True, "recompute": True}
    for block in ("layer", ""):
        judgment = judge(replace(PLAIN, micro_batches=2, block=block, **equal))
        assert judgment.wrong == {}


def test_a_recomputed_call_belongs_to_the_step_of_its_forward_call() -> None:
    equal = {"order": "1f1b", "even": True, "recompute": True, "evaluate": 2}
    judgment = judge(replace(PLAIN, layers=1, first_gradient=False, **equal))
    assert judgment.wrong == {}


def test_a_thread_that_communicates_leaves_phases_unknown() -> None:
    judgment = judge(replace(PLAIN, thread=True))
    assert judgment.wrong == {}
    assert judgment.unnamed["phase"] == judgment.every["phase"]
