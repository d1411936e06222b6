"""Functions that a torch profile or execution trace contains, and the calls among them.

A forward function and its backward have the same autograd sequence number.  A call is
backward if the innermost function around it is, and recomputed if that one is a forward
function within a backward.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .imported_call import ImportedCall, ImportedRank
from .torch_collective import C10D, RECORDED

STEP = re.compile(r"ProfilerStep#(\d{1,12})")
PARAMETERS = "record_param_comms"
ENGINE = "autograd::engine::evaluate_function"
DEEPEST = 1000  # functions around a call


@dataclass(kw_only=True, slots=True, eq=False)
class ProfiledFunction:
    """Operator, ``record_param_comms`` or autograd function of one rank's file."""

    at: int  # increases in call order: begin, or number of the node
    name: str = ""
    thread: int = 0
    sequence: int = -1  # autograd sequence number, -1 for none
    backward: bool = False  # a backward function, or autograd's engine
    arguments: Mapping[str, Any] = field(default_factory=dict)
    collective: str = ""  # name of the collective in a record_param_comms
    outer: ProfiledFunction | None = None  # innermost function around it

    def around(self) -> Iterator[ProfiledFunction]:
        """Iterate over the enclosing functions, innermost first."""
        one = self.outer
        for _ in range(DEEPEST):  # a damaged file may have a cycle
            if one is None:
                return
            yield one
            one = one.outer


Pair = tuple[ProfiledFunction | None, ProfiledFunction | None]
"""Operator and its ``record_param_comms``; at least one is not None."""


def paired(
    functions: Iterable[ProfiledFunction], *, asynchronous: bool = False
) -> list[Pair]:
    """Pair operators with the first collective recorded inside them, in call order.

    Further ones are implementation details of a backend, as are operators inside
    operators, unless ``asynchronous``: an operator may then still run when its thread
    calls the next one, which seems to be inside.
    """
    inside: dict[int, ProfiledFunction] = {}
    outermost = []
    for one in sorted(functions, key=lambda f: f.at):
        around = list(one.around())
        owner = next((f for f in reversed(around) if f.name.startswith(C10D)), None)
        if one.name != PARAMETERS:
            outermost += [one] if owner is None or asynchronous else []
        elif one.collective in RECORDED and owner is not None:
            inside.setdefault(id(owner), one)
        elif one.collective in RECORDED and all(f.name != PARAMETERS for f in around):
            outermost.append(one)
    return [
        (None, one) if one.name == PARAMETERS else (one, inside.get(id(one)))
        for one in outermost
    ]


def add_calls(
    record: ImportedRank,
    pairs: Iterable[Pair],
    steps: Mapping[int, tuple[int, int, int]],
    build: Callable[
        [ProfiledFunction | None, ProfiledFunction | None], ImportedCall | None
    ],
) -> None:
    """Add the calls and steps of one rank's file to its record.

    ``steps`` has iteration number, start and end of each step by its ``at``; ``build``
    returns the call of a pair, None for one that is left out.
    """
    begins = sorted(steps)
    threads: dict[int, int] = {}
    for operator, recorded in pairs:
        call, one = build(operator, recorded), operator or recorded
        if call is None or one is None:
            continue
        call.thread = threads.setdefault(one.thread, len(threads))
        call.direction, call.link = _direction_and_link(list(one.around()))
        step = bisect_right(begins, one.at) - 1
        if begins and step < 0:
            record.left_out[f"{call.operation} before the first step"] += 1
            continue
        call.iteration = steps[begins[step]][0] if begins else -1
        record.add(call)
    last = max((c.iteration for c in record.calls), default=-1)
    # the last step marker begins a step without calls
    record.steps += [steps[at] for at in begins if steps[at][0] <= last]


def _direction_and_link(around: Sequence[ProfiledFunction]) -> tuple[str, int]:
    """Infer a call's direction and autograd sequence number (-1 for none)."""
    link = next((f.sequence for f in around if f.sequence >= 0), -1)
    if not any(f.backward for f in around):
        return "forward", link
    nearest = next(f for f in around if f.sequence >= 0 or f.backward)
    return ("backward" if nearest.backward else "recompute"), link
