"""Passes beside background and without them, in pairs, to tell what they cost.

Both passes of a pair follow each other on the same ranks and groups, and which goes
first alternates (beside, without, without, beside), so that what drifts in the machine
falls on both.  :func:`moetraffic.replay.results.fidelity.slowdown` makes a ratio and
its interval of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.replay.plan.program import Plan, Program

EXCHANGES = 0
"""The stream of the exchanges between experts."""

MOST_PAIRS = 1000


def schedule(pairs: int) -> tuple[bool, ...]:
    """In which order passes run; true is beside background.

    Raises
    ------
    ReplayError
        If there are not two pairs at least, or too many to wait for.

    Examples
    --------
    >>> schedule(2)
    (True, False, False, True)
    """
    if not 2 <= pairs <= MOST_PAIRS:
        raise ReplayError(
            f"an interval needs 2 to {MOST_PAIRS} pairs of passes, but --pairs is "
            f"{pairs}: change it"
        )
    return tuple(
        beside
        for pair in range(pairs)
        for beside in ((True, False) if pair % 2 == 0 else (False, True))
    )


def without(plan: Plan) -> Plan:
    """The same plan, whose programs have the exchanges between experts alone.

    Operations, groups and streams keep their numbers, so that both run on one backend.

    Raises
    ------
    ReplayError
        If the plan has nothing else, or no exchange.
    """
    beside = plan.stream != EXCHANGES
    if not beside.any() or beside.all():
        raise ReplayError(
            "a slowdown compares exchanges between experts beside dense traffic with "
            f"those alone, but of {len(plan)} operations {int(beside.sum())} are "
            "dense: replay both, with --alongside"
        )
    programs = {rank: _alone(program) for rank, program in plan.programs.items()}
    return replace(plan, programs=programs)


def _alone(program: Program) -> Program:
    keep = program.stream == EXCHANGES
    width = np.diff(program.first)
    cells = np.repeat(keep, width)
    place = np.cumsum(keep) - 1
    # what is waited for is the last exchange at, or before, what was
    after = np.where(program.after >= 0, place[program.after], -1)
    return replace(
        program,
        operation=program.operation[keep],
        group=program.group[keep],
        stream=program.stream[keep],
        kind=program.kind[keep],
        send_size=program.send_size[keep],
        receive_size=program.receive_size[keep],
        first=np.concatenate([[0], np.cumsum(width[keep])]).astype(np.int64),
        send_bytes=program.send_bytes[cells],
        receive_bytes=program.receive_bytes[cells],
        waits=program.waits[keep],
        after=after[keep],
        gap_ns=program.gap_ns[keep],
        due_ns=program.due_ns[keep],
    )
