"""Iterations end where the program says, or where its optimizers are through."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.trace.merge.iterations import Mark, ended_iterations, is_marked
from moetraffic.trace.merge.log_format import OPTIMIZER, STEP


def numbered(program: str) -> tuple[list[int], list[int]]:
    """Iterations of the calls of a program, and the times at which iterations end.

    ``f`` and ``b`` are calls of a forward and a backward pass, ``c`` any other
    collective, ``o`` a step of an optimizer, ``i`` one within a backward pass, ``x``
    one that a gradient scaler skips and ``s`` one that the program marks.
    """
    calls, ends, _ = with_kinds(program)
    return calls, ends


def with_kinds(program: str) -> tuple[list[int], list[int], list[str]]:
    """As ``numbered``, with the kind of each iteration."""
    marks, letters = [], ""
    for time, letter in enumerate(program):
        if letter == "s":
            marks.append(Mark(STEP, len(letters), time, program[:time].count("s")))
        elif letter in "oix":
            inside, skipped = letter == "i", letter == "x"
            mark = Mark(OPTIMIZER, len(letters), time, len(marks), inside, skipped)
            marks.append(mark)
        else:
            letters += letter
    ended = ended_iterations(
        marks,
        np.array([letter in "fb" for letter in letters], bool),
        np.array([letter == "b" for letter in letters], bool),
        marked=is_marked(marks),
    )
    edges = [stop.calls for stop in ended]
    calls = np.searchsorted(edges, np.arange(len(letters)), side="right").tolist()
    kinds = ["skipped" if stop.skipped else "train" for stop in ended]
    return calls, [stop.end for stop in ended], kinds


def test_an_optimizer_ends_an_iteration() -> None:
    assert numbered("fbofbofb") == ([0, 0, 1, 1, 2, 2], [2, 5])


def test_several_optimizers_end_one() -> None:
    # the gathering of parameters between them and after them is told apart
    assert numbered("fbocofbocoof") == ([0, 0, 0, 1, 1, 1, 2], [4, 10])
    assert numbered("fbocf") == ([0, 0, 1, 1], [2])


def test_marks_come_before_optimizers() -> None:
    assert numbered("fbosfbos") == ([0, 0, 1, 1], [3, 7])
    # a program that steps its optimizer twice in what it calls one step
    assert numbered("fbosfbofbos") == ([0, 0, 1, 1, 1, 1], [3, 10])
    # the first mark owns the run from its first call on
    assert numbered("fbofbofbosfbofbos") == ([0] * 6 + [1] * 4, [9, 16])


def test_optimizers_within_a_backward_pass_end_it_once() -> None:
    # "bib" and "bi": calls of the same pass follow the optimizers, or do not
    assert numbered("ffbibibffbibifb")[0] == [0] * 5 + [1] * 4 + [2] * 2
    assert numbered("fbicfb") == ([0, 0, 1, 1, 1], [2])
    # a reentrant pass within another one, whose end is seen later
    assert numbered("fbibofbibo") == ([0, 0, 0, 1, 1, 1], [4, 9])


def test_an_iteration_is_skipped_if_all_its_optimizers_are() -> None:
    assert with_kinds("fbofbxfbo")[2] == ["train", "skipped", "train"]
    assert with_kinds("fbxofbxcxf")[2] == ["train", "skipped"]
    assert with_kinds("fbosfbxsfbs")[2] == ["train", "skipped", "train"]


def test_nothing_ends_without_either() -> None:
    assert numbered("fbfbc") == ([0] * 5, [])


@given(
    iterations=st.integers(1, 6),
    layers=st.integers(1, 3),
    optimizers=st.integers(1, 3),
    gathers=st.integers(0, 2),
    marked=st.booleans(),
)
def test_regular_programs_are_numbered_exactly(
    iterations: int, layers: int, optimizers: int, gathers: int, marked: bool
) -> None:
    end = "s" if marked else ""
    one = "f" * layers + "b" * layers + "c" + ("o" + "c" * gathers) * optimizers + end
    calls, ends = numbered(one * iterations)
    inside = sum(letter in "fbc" for letter in one)
    want = [i for i in range(iterations) for _ in range(inside)]
    if not marked and gathers:
        # what follows the last optimizer is told to the next iteration
        want = want[gathers:] + [iterations] * gathers
        head = [0] * (inside - gathers)
        want = head + want[len(head) :]
    assert calls == want
    assert len(ends) == iterations
