"""Pair replay passes with and without background traffic to measure the slowdown.

Both passes of a pair follow each other on the same ranks and groups, and their order
alternates (with, without, without, with), so that drift of the machine affects both.
:func:`moetraffic.replay.results.audit.slowdown` computes a ratio and its confidence
interval from them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.errors import ReplayError

from .program import Plan, Program

EXPERTS = 0
"""Index of the stream of expert exchanges."""

MAX_PAIRS = 1000


def pass_order(pairs: int) -> tuple[bool, ...]:
    """Return the order of replay passes; true marks one with background traffic.

    Raises
    ------
    ReplayError
        If there are fewer than two pairs, or too many.

    Examples
    --------
    >>> pass_order(2)
    (True, False, False, True)
    """
    if not 2 <= pairs <= MAX_PAIRS:
        raise ReplayError(
            f"an interval needs 2 to {MAX_PAIRS} pairs of passes, but --pairs is "
            f"{pairs}: change it"
        )
    orders = ((True, False), (False, True))
    return tuple(one for pair in range(pairs) for one in orders[pair % 2])


def expert_exchanges(plan: Plan) -> Plan:
    """Return a copy of a replay plan whose programs contain only expert exchanges.

    Operations, groups and streams keep their numbers, so that both plans run on one
    backend.

    Raises
    ------
    ReplayError
        If the plan has only expert exchanges, or none.
    """
    background = plan.stream != EXPERTS
    if not background.any() or background.all():
        raise ReplayError(
            "a slowdown compares expert exchanges with and without dense traffic, but "
            f"of {len(plan)} operations {int(background.sum())} are dense: replay "
            "both, with --alongside"
        )
    programs = {rank: _exchanges(program) for rank, program in plan.programs.items()}
    return replace(plan, programs=programs)


def _exchanges(program: Program) -> Program:
    keep = program.stream == EXPERTS
    width = np.diff(program.first)
    cells = np.repeat(keep, width)
    per_operation = (
        *("operation", "group", "stream", "kind", "send_size", "receive_size"),
        *("waits", "gap_ns", "due_ns"),
    )
    # dense operations are gone: wait for the last exchange at or before the old one
    place = np.cumsum(keep) - 1
    after = np.where(program.after >= 0, place[program.after], -1)
    return replace(
        program,
        **{name: getattr(program, name)[keep] for name in per_operation},
        first=np.concatenate([[0], np.cumsum(width[keep])]).astype(np.int64),
        send_bytes=program.send_bytes[cells],
        receive_bytes=program.receive_bytes[cells],
        after=after[keep],
    )
