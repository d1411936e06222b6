"""Run the passes that tell what dense traffic costs the all-to-alls."""

from __future__ import annotations

from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.plan.program import Plan

from .background_pairs import schedule
from .control import gather
from .engine import Engine
from .timing import Timing

Pair = tuple[dict[int, Timing], dict[int, Timing]]
"""Every rank's times of a pass without dense traffic, and of one with it."""


def compare(
    plan: Plan,
    rank: int,
    backend: Backend,
    *,
    beside: Engine,
    alone: Engine,
    pairs: int,
) -> list[Pair]:
    """Run pairs of passes, in turns.

    Parameters
    ----------
    plan
        Of all operations.
    rank
        Which rank this is.
    backend
        That of both engines.
    beside, alone
        With all operations, and with those of :func:`.background_pairs.without`.
    pairs
        How many.

    Returns
    -------
    list of Pair
        On rank 0; empty on the others.

    Raises
    ------
    RankError
        If a rank does not answer.
    """
    found: dict[bool, list[dict[int, Timing]]] = {True: [], False: []}
    for with_it in schedule(pairs):
        timing = (beside if with_it else alone).run()
        found[with_it].append(gather(plan, rank, backend, timing))
    return [] if rank else list(zip(found[False], found[True], strict=True))
