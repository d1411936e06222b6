"""A relabeled copy of a captured run: its iterations in order, other expert labels.

A copy is no new traffic: one permutation of the experts of each layer restores the run.
Use it to share a run, or to test that a scheduler does not depend on labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Int32, Int64, Integer

from .chance import Use, generator
from .labels import nested_order
from .surrogate import BLOCK_BYTES


@dataclass(frozen=True, kw_only=True, eq=False)
class RelabeledCopy:
    """Token counts of a run under other labels, as of :class:`.surrogate.Sample`."""

    captured: Integer  # [T, L, R, E]
    source: Int64  # [N] captured iteration of each
    turn: Int64  # [N] how often the end of the run came before
    rows: Int64  # [R'] captured row of each
    labels: Int64  # [turns, L, E] captured expert that each is
    iterations: int  # N
    repeats_from: int  # first iteration that repeats captured ones again; -1: none

    def blocks(self) -> Iterator[Int32]:
        """The counts in the order of iterations, ``[b, L, R', E]`` each."""
        _, layers, _, experts = self.captured.shape
        step = max(1, BLOCK_BYTES // (4 * layers * len(self.rows) * experts))
        for first in range(0, self.iterations, step):
            part = slice(first, first + step)
            counts = self.captured[self.source[part]][:, :, self.rows]
            labels = self.labels[self.turn[part], :, None]
            yield np.take_along_axis(counts, labels, axis=3).astype(np.int32)


def relabel(
    captured: Integer,
    *,
    iterations: int,
    seed: int,
    ep: int,
    rows: Int64 | None = None,
) -> RelabeledCopy:
    """Relabel the experts of token counts ``[T, L, R, E]``.

    Experts of a rank and whole ranks are permuted, of ``ep`` ranks.  Iterations beyond
    the captured ones repeat its last third, under new labels each time.  ``rows [R']``
    are the captured rows to send again; None: each once.
    """
    total, layers, ranks, experts = captured.shape
    tail = max(1, total // 3)
    after = np.arange(iterations) - total
    turn = np.where(after < 0, 0, 1 + after // tail)
    rng = generator(seed, Use.RUN)
    labels = [
        [nested_order(experts, ep, rng) for _ in range(layers)]
        for _ in range(int(turn[-1]) + 1)
    ]
    return RelabeledCopy(
        captured=captured,
        source=np.where(after < 0, after + total, total - tail + after % tail),
        turn=turn,
        rows=np.arange(ranks) if rows is None else rows,
        labels=np.array(labels),
        iterations=iterations,
        repeats_from=total if iterations > total else -1,
    )
