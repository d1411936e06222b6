"""What a capture lacks: its gaps, early ends, and records that ranks omitted.

Both are facts of the ranks' records; the sentences are for people.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .rank_record import RankRecord, Record, Table

STEP_VALUES = frozenset(("loss", "token count", "step kind"))
"""Kinds of omitted records that are no traffic."""

CALL = "call of "
"""Beginning of the kinds of omitted records that are calls; the name follows."""


def is_complete(record: Record) -> bool:
    """Whether all calls of all ranks are recorded until the end of the run."""
    return not gaps(record) and not any(
        rank.ended or rank.stopped_at >= 0 or set(rank.omitted) - STEP_VALUES
        for rank in record.ranks.values()
    )


def omitted_calls(record: Record) -> int:
    """Count the collective calls that ranks could not record."""
    return sum(
        count
        for rank in record.ranks.values()
        for kind, count in rank.omitted.items()
        if kind.startswith(CALL)
    )


def gaps(record: Record) -> list[str]:
    """Describe the missing parts of a record, a sentence each."""
    sentences = []
    for before, after in pairwise([-1, *record.ranks, record.meta.world]):
        if after - before == 2:
            sentences.append(f"rank {before + 1} recorded nothing")
        elif after - before > 2:
            sentences.append(f"ranks {before + 1} to {after - 1} recorded nothing")
    ended = _last_iterations(record.steps)
    for number, rank in record.ranks.items():
        steps = _count(rank.lost_steps, "step")
        if rank.damage:
            among = f", among them {steps} of rank {number}" if rank.lost_steps else ""
            sentences.append(rank.damage + among)
        elif rank.recording:
            sentences.append(f"rank {number} still records")
        elif not rank.closed:
            tail = _tail(rank, ended.get(number, -1))
            sentences.append(f"rank {number} was killed: {tail}")
        elif rank.lost_steps:
            sentences.append(f"rank {number} could not write {steps}")
        if rank.lost_calls or rank.gaps:
            calls = _count(rank.lost_calls, "call") if rank.lost_calls else "some calls"
            sentences.append(f"rank {number} could not write {calls}")
    return sentences


def _tail(rank: RankRecord, last: int) -> str:
    """Describe what was lost at the end of a rank's record."""
    end = f"after iteration {last}" if last >= 0 else "before its first step"
    lost = "only the step under way is lost"
    if rank.lost_steps:
        lost = f"{_count(rank.lost_steps, 'later step')} and the one under way are lost"
    return f"its record ends {end}, {lost}"


def remarks(record: Record) -> list[str]:
    """Describe why ranks ended early and what they omitted, grouped by ranks."""
    ended, begun = _last_iterations(record.steps), _last_iterations(record.calls)
    ends = defaultdict[str, list[int]](list)  # ranks by text
    omissions = defaultdict[str, list[int]](list)
    for number, rank in record.ranks.items():
        if rank.ended:
            last, planned = ended.get(number, -1), _planned(rank.meta.workload)
            of = f" of {planned}" if planned else ""
            end = f"{rank.ended} after {last + 1}{of} iterations"
            if begun.get(number, -1) > last:
                end += f", and its record of iteration {begun[number]} is incomplete"
            ends[end].append(number)
        omitted = [_omitted(rank, kind, count) for kind, count in rank.omitted.items()]
        if rank.stopped_at >= 0:
            omitted.append(
                f"iterations from {rank.stopped_at} on, because of the maximum size"
            )
        if omitted:
            omissions[", ".join(omitted)].append(number)
    return [
        f"{_ranks(numbers)} {verbs[len(numbers) > 1]} {text}"
        for verbs, texts in (
            (("was", "were"), ends),
            (("left out", "each left out"), omissions),
        )
        for text, numbers in texts.items()
    ]


def _omitted(rank: RankRecord, kind: str, count: int) -> str:
    reason = rank.reasons.get(kind, "")
    return f"{count} x {kind} ({reason})" if reason else f"{count} {kind}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _last_iterations(table: Table) -> dict[int, int]:
    """Return the last iteration of each rank in a table of calls or steps."""
    ranks, row = np.unique(table["rank"], return_inverse=True)
    last = np.full(len(ranks), -1)
    np.maximum.at(last, row, table["iteration"])
    return dict(zip(ranks.tolist(), last.tolist(), strict=True))


def _planned(workload: str) -> int:
    """Return the planned number of training iterations, 0 where it is unknown."""
    try:
        planned = json.loads(workload)["training"]["iterations"]
    except (ValueError, KeyError, TypeError):
        return 0  # a user's training loop has no workload description
    return planned if isinstance(planned, int) else 0
