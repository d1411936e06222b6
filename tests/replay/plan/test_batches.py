"""Messages that overlapped are launched together, and never wait in a cycle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.trace.model import (
    UNKNOWN_TIME,
    Group,
    Meta,
    Occurrences,
    Site,
    Steps,
)
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.trace import Trace
from tests.replay.conftest import planned

WORLD = 4
MS = 1_000_000


def messages(
    times: Mapping[tuple[int, int], tuple[float, float]],
    *,
    iterations: int = 1,
    jitter_ms: np.ndarray | None = None,
) -> Trace:
    """A pipeline of four ranks whose messages are issued and end at times, in ms.

    Iterations are 40 ms apart; ``jitter_ms`` ``[iterations * messages, 4]`` is added to
    each rank's times.
    """
    pairs = list(times)
    count = iterations * len(pairs)
    which = np.repeat(np.arange(len(pairs), dtype=np.int32), iterations)
    when = np.tile(np.arange(iterations, dtype=np.int64), len(pairs))
    present = np.zeros((count, WORLD), np.uint8)
    for row, pair in enumerate(which.tolist()):
        present[row, list(pairs[pair])] = 1
    both = np.array([times[p] for p in pairs])[which] + 40.0 * when[:, None]
    late = np.zeros((count, WORLD)) if jitter_ms is None else jitter_ms
    issue, end = (
        np.where(present, np.int64(MS * (both[:, [at]] + late)), UNKNOWN_TIME)
        for at in (0, 1)
    )
    known = np.full((iterations, WORLD), UNKNOWN_TIME)
    volume = 96 * np.array([[r == a for r in range(WORLD)] for a, _ in pairs])
    panels = {"present": present, "issue": issue, "start": issue, "end": end}
    panels["volume"] = volume
    return Trace(
        meta=Meta(world=WORLD, pp=WORLD, dp=1),
        groups=[Group(kind="pp", ranks=tuple(range(WORLD)))],
        sites=[
            Site(
                group=0,
                operation="send_recv",
                peers=pair,
            )
            for pair in pairs
        ],
        occurrences=Occurrences(
            iteration=when,
            site=which,
            sequence=np.full(count, -1),
            matrix=which.astype(np.int64),
            transposed=np.zeros(count, bool),
        ),
        panels={f"call_{WORLD}/{name}": ArrayPanel(p) for name, p in panels.items()},
        steps=Steps(
            iteration=np.arange(iterations, dtype=np.int64),
            kind=("train",) * iterations,
            loss=np.ones((iterations, WORLD)),
            tokens=np.ones((iterations, WORLD), np.int64),
            start=known,
            end=known,
            source=np.zeros(iterations, np.uint8),
        ),
    )


def batches(made, rank: int) -> list[list[int]]:
    """Operations of each launch of a rank, in its order; of a plan and its programs."""
    program = made[1][rank]
    firsts = np.flatnonzero(program.batch == np.arange(len(program)))
    return [part.tolist() for part in np.split(program.operation, firsts)[1:]]


def unfinished(made) -> int:
    """Launches that never end if each rank has one in flight at a time."""
    plan, _ = made
    queues = [batches(made, rank) for rank in range(plan.world)]
    done: set[int] = set()
    progress = True
    while progress:
        heads = [set(q[0]) if q else set() for q in queues]
        ends = zip(plan.sender.tolist(), plan.receiver.tolist(), strict=True)
        done |= {o for o, (a, b) in enumerate(ends) if o in heads[a] & heads[b]}
        progress = False
        for queue in queues:
            while queue and done.issuperset(queue[0]):
                queue.pop(0)
                progress = True
    return sum(map(len, queues))


def test_messages_that_overlapped_are_a_batch():
    crossing = {(0, 1): (0, 5), (1, 0): (4, 9), (1, 2): (5, 8), (0, 3): (20, 21)}
    made = planned(messages(crossing, iterations=2))
    # operations are in the order of sites; the third was issued after the first's end
    assert batches(made, 1) == [[0, 2], [4], [1, 3], [5]]
    assert batches(made, 0) == [[0, 2], [6], [1, 3], [7]]
    assert batches(made, 2) == [[4], [5]]


def test_iterations_share_no_batch():
    made = planned(messages({(0, 1): (0, 50), (1, 0): (30, 60)}, iterations=3))
    assert batches(made, 0) == [[0, 3], [1, 4], [2, 5]]


def drawn(seed: int) -> Trace:
    """Messages between random pairs, of which each rank has its own times."""
    random = np.random.default_rng(seed)
    pairs = [(a, b) for a in range(WORLD) for b in range(WORLD) if a != b]
    times = {}
    for pair in random.permutation(pairs)[:9].tolist():
        issue = float(random.uniform(0, 30))
        times[tuple(pair)] = issue, issue + float(random.uniform(1, 20))
    late = random.uniform(0, 20, (18, WORLD))
    return messages(times, iterations=2, jitter_ms=late)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_in_one_order_every_batch_ends_whatever_each_rank_did(seed):
    made = planned(drawn(seed), in_common=True)
    assert unfinished(made) == 0
    plan, programs = made
    for rank, program in programs.items():
        for batch in batches(made, rank):
            here = [int(np.flatnonzero(program.operation == o)[0]) for o in batch]
            assert not set(program.after[here].tolist()) & set(here)
            assert len(set(plan.iteration[batch].tolist())) == 1
