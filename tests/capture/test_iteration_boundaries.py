"""Iterations end where the program says, or where its optimizers are through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moetraffic.capture.iteration_boundaries import IterationBoundaries


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
    boundaries = IterationBoundaries()
    calls: list[int] = []
    ends: list[int] = []
    kinds: list[str] = []
    for time, letter in enumerate(program):
        if letter in "oix":
            boundaries.optimizer(time, in_backward=letter == "i", skipped=letter == "x")
        elif letter == "s":
            if boundaries.step():
                calls, ends, kinds = [0] * len(calls), [], []
            ends.append(time)
            kinds.append(boundaries.kind)
        else:
            found = boundaries.call(
                time, settles=letter in "fb", in_backward=letter == "b"
            )
            if found is not None:
                after, when = found
                ends.append(when)
                kinds.append(boundaries.kind)
                for at in range(len(calls) - after, len(calls)):
                    calls[at] += 1
            calls.append(boundaries.iteration)
    found = boundaries.settle()
    if found is not None:
        ends.append(found[1])
        kinds.append(boundaries.kind)
        for at in range(len(calls) - found[0], len(calls)):
            calls[at] += 1
    return calls, ends, kinds


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


def test_nothing_is_known_without_either() -> None:
    boundaries = IterationBoundaries()
    for time in range(9):
        assert boundaries.call(time, settles=True, in_backward=False) is None
    assert not boundaries.known


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


def test_setup_is_no_part_of_the_first_iteration() -> None:
    """It starts with its first call of a pass, also where steps show later that what
    optimizers ended before was all of it; others start where the last one ended."""
    boundaries = IterationBoundaries(begun=5, first=5)
    plain, passes = {"settles": False}, {"settles": True}
    for when, told, begun in ((100, plain, 100), (105, plain, 100), (110, passes, 110)):
        boundaries.call(when, in_backward=False, **told)
        assert (boundaries.begun, boundaries.first) == (begun, begun)
    boundaries.call(115, settles=True, in_backward=True)
    assert (boundaries.begun, boundaries.first) == (110, 110)
    boundaries.optimizer(120)
    assert boundaries.call(130, settles=True, in_backward=False) == (0, 120)
    boundaries.begun = 120
    boundaries.call(140, settles=True, in_backward=False)
    assert (boundaries.begun, boundaries.first) == (120, 110)


def test_a_first_iteration_without_a_pass_starts_with_its_first_call() -> None:
    """As where gradients are averaged outside of the backward pass."""
    boundaries = IterationBoundaries(begun=5, first=5)
    for when in (100, 110):
        boundaries.call(when, settles=False, in_backward=False)
    boundaries.optimizer(120)
    assert boundaries.call(130, settles=True, in_backward=False) == (0, 120)
    assert (boundaries.begun, boundaries.first) == (100, 100)
