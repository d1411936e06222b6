"""What a capture lacks: its gaps, early ends, and records that ranks omitted.

Both are facts of the ranks' records; the sentences are for people.
"""

from __future__ import annotations

import json
from collections import defaultdict
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
    omitted = [rank.omitted.items() for rank in record.ranks.values()]
    return sum(n for kinds in omitted for kind, n in kinds if kind.startswith(CALL))


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
            last = ended.get(number, -1)
            end = f"after iteration {last}" if last >= 0 else "before its first step"
            lost = "only the step under way is lost"
            if rank.lost_steps:
                later = _count(rank.lost_steps, "later step")
                lost = f"{later} and the one under way are lost"
            sentences.append(f"rank {number} was killed: its record ends {end}, {lost}")
        elif rank.lost_steps:
            sentences.append(f"rank {number} could not write {steps}")
        if rank.lost_calls or rank.gaps:
            calls = _count(rank.lost_calls, "call") if rank.lost_calls else "some calls"
            sentences.append(f"rank {number} could not write {calls}")
    return sentences


def remarks(record: Record) -> list[str]:
    """Describe why ranks ended early and what they omitted, grouped by ranks."""
    ended, begun = _last_iterations(record.steps), _last_iterations(record.calls)
    said = defaultdict[tuple[str, str, str], list[int]](list)  # ranks by sentence
    for number, rank in record.ranks.items():
        if rank.ended:
            last, planned = ended.get(number, -1), _planned(rank)
            end = f"{rank.ended} after {last + 1}{planned} iterations"
            if begun.get(number, -1) > last:
                end += f", and its record of iteration {begun[number]} is incomplete"
            said["was", "were", end].append(number)
        omitted = []
        for kind, count in rank.omitted.items():
            reason = rank.reasons.get(kind, "")
            text = f"{count} x {kind} ({reason})" if reason else f"{count} {kind}"
            omitted.append(text)
        if rank.stopped_at >= 0:
            omitted.append(
                f"iterations from {rank.stopped_at} on, because of the maximum size"
            )
        if omitted:
            key = "left out", "each left out", ", ".join(omitted)
            said[key].append(number)
    return [
        f"rank {numbers[0]} {verb} {text}"
        if len(numbers) == 1
        else f"ranks {', '.join(map(str, numbers))} {verbs} {text}"
        for (verb, verbs, text), numbers in sorted(
            said.items(), key=lambda item: item[0][0], reverse=True
        )
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _last_iterations(table: Table) -> dict[int, int]:
    """Return the last iteration of each rank in a table of calls or steps."""
    ranks, row = np.unique(table["rank"], return_inverse=True)
    last = np.full(len(ranks), -1)
    np.maximum.at(last, row, table["iteration"])
    return dict(zip(ranks.tolist(), last.tolist(), strict=True))


def _planned(rank: RankRecord) -> str:
    """Describe the planned number of training iterations, "" where it is unknown."""
    try:
        return f" of {json.loads(rank.meta.workload)['training']['iterations']}"
    except (ValueError, KeyError, TypeError):
        return ""  # a user's training loop has no workload description
