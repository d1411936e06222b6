"""Recorder of expert routings of R virtual ranks that are trained in one process.

The training processes the shards of all ranks in one process and reports the routing of
each (:func:`.annotate.shard_routing`).  Nothing is sent; the traffic matrices of expert
parallelism over R ranks are computed from the routing and the expert placement.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from moetraffic.arrays import Int32
from moetraffic.patterns import Workload
from moetraffic.trace import Trace
from moetraffic.trace.choices import ExpertIds, padded
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.merge.log_folder import prepare
from moetraffic.trace.model import MOST_TOKEN_SAMPLE, Group, Source, Steps
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing

from .annotate import SAVE_EVERY, ShardRouting, subscribe_shards
from .recorder import describe
from .token_sample import TokenSample, choice_ids
from .validation import cause, check_number


@dataclass
class RoutedSteps:
    """Routings of one layer and micro-batch, a row for each iteration."""

    row_bytes: int = 0
    dtype: str = ""
    padded: int = 0  # fixed rows to each expert; 0: the kept copies
    iteration: list[int] = field(default_factory=list)
    copies: list[Int32] = field(default_factory=list)  # [2, R, E] routed, dropped
    chosen: list[ExpertIds] = field(default_factory=list)  # [R, S, k]


class VirtualRecorder:
    """Recorder of the expert routings of all virtual ranks trained in one process.

    The interface is that of :class:`.Recorder`, with one loss per rank.  Records are
    kept in memory, and the trace is saved now and then: a killed process loses what
    came after the last save.

    Parameters
    ----------
    path
        The trace to write.
    workload
        The workload; its layout determines the ranks and the expert-parallel groups.
    save_every
        Number of iterations after which the trace so far is saved again.
    token_sample
        Tokens of each rank, layer and micro-batch whose experts are recorded.
    force
        Overwrite ``path``.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        workload: Workload,
        save_every: int = SAVE_EVERY,
        token_sample: int = 0,
        force: bool = False,
    ) -> None:
        check_number("token_sample", token_sample, 0, MOST_TOKEN_SAMPLE)
        check_number("save_every", save_every, 1)
        self.path, self.iteration = Path(path), 0
        self.spent_s = 0.0  # time that recording has taken in the training thread
        self._force, self._save_every = force, save_every
        self._workload, self._ranks = workload, workload.layout.world
        self._sample = TokenSample(token_sample, 0)
        self._groups = [
            Group(kind="ep", ranks=ranks) for ranks in workload.layout.groups("ep")
        ]
        self._layers: dict[tuple[int, int], RoutedSteps] = {}  # by slot and layer
        self._loss: list[Sequence[float]] = []
        self._steps: list[tuple[int, int, int, str]] = []  # tokens, start, end, kind
        self._ended, self._records = "", False

    def __enter__(self) -> VirtualRecorder:
        prepare(self.path, force=self._force, overwrite="give force=True")
        self._unsubscribe = subscribe_shards(self._shards)
        self._records, self._begun = True, time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.end_early(cause(error))
        self.close()

    def end_early(self, why: str) -> None:
        """Record the reason for an early end, see :meth:`.Recorder.end_early`."""
        self._ended = self._ended or " ".join(why.split())[:200]

    def step(self, *, loss: Sequence[float], tokens: int, kind: str = "train") -> None:
        """End the current step, of ``[R]`` losses, and tokens of each rank."""
        now = time.perf_counter_ns()
        self._loss.append(loss)
        self._steps.append((tokens, self._begun, now, kind))
        self.iteration += 1
        if self.iteration % self._save_every == 0:
            self._save(f"the run was not at its end after {self.iteration} iterations")
        self._begun = time.perf_counter_ns()
        self.spent_s += (self._begun - now) / 1e9

    def close(self) -> Trace | None:
        """Stop recording, and write the trace; None where no step has ended."""
        if not self._records:
            return None
        self._unsubscribe()
        self._records = False
        if not self.iteration:
            return None
        planned = self._workload.training.iterations
        after = f"after {self.iteration} of {planned} iterations"
        return self._save(f"the run was {self._ended} {after}" if self._ended else "")

    def _shards(self, decided: ShardRouting) -> None:
        began = time.perf_counter_ns()
        counts = decided.demand.detach().cpu().numpy()
        layer = self._layers.setdefault((decided.slot, decided.layer), RoutedSteps())
        layer.row_bytes, layer.dtype = decided.row_bytes, decided.dtype
        layer.padded = decided.padded
        tokens, k = self._sample.tokens, self._workload.gating.k
        if layer.iteration[-1:] != [self.iteration]:
            layer.iteration.append(self.iteration)
            layer.copies.append(np.zeros((2, self._ranks, counts.shape[1]), np.int32))
            layer.chosen.append(np.full((self._ranks, tokens, k), -1, np.int16))
        # a recomputed forward pass reports the same routing again
        ranks = slice(decided.first, decided.first + len(counts))
        layer.copies[-1][0, ranks] = counts
        layer.copies[-1][1, ranks] = decided.dropped.detach().cpu().numpy()
        if tokens:
            for rank, chosen in enumerate(decided.chosen, start=decided.first):
                ids = choice_ids(self._sample.take(chosen), counts.shape[1])
                layer.chosen[-1][rank] = padded(ids, tokens, k)
        self.spent_s += (time.perf_counter_ns() - began) / 1e9

    def _save(self, missing: str) -> Trace:
        """Save the trace of all steps that have ended."""
        model, steps = self._workload.model, len(self._steps)
        layers = []
        for (slot, layer), routed in sorted(self._layers.items()):
            # a step under way is left out
            count = int(np.searchsorted(routed.iteration, steps))
            demand, dropped = np.stack(routed.copies[:count], axis=1)
            layers.append(
                RoutedLayer(
                    layer=layer,
                    slot=slot,
                    iteration=np.array(routed.iteration[:count], np.int64),
                    demand=ArrayPanel(demand),
                    dropped=ArrayPanel(dropped) if dropped.any() else None,
                    row_bytes=routed.row_bytes,
                    dtype=routed.dtype,
                    padded=routed.padded,
                    chosen=(
                        np.stack(routed.chosen[:count]) if self._sample.tokens else None
                    ),
                )
            )
        tokens, start, end, kind = zip(*self._steps, strict=True)
        of_ranks = (steps, self._ranks)
        meta = describe(self._workload, self._ranks, model="", router="", k=0)
        trace = trace_of_routing(
            layers,
            groups=self._groups,
            placements=contiguous_placement(
                self._groups, model.moe_layers, model.experts
            ),
            meta=replace(
                meta,
                virtual=True,
                backend="",  # unused, since nothing is sent
                complete=not missing,
                missing=missing,
                nodes=(socket.gethostname(), *[""] * (self._ranks - 1)),
            ),
            steps=Steps(
                iteration=np.arange(steps),
                kind=kind,
                loss=np.array(self._loss, np.float64),
                tokens=np.broadcast_to(np.array(tokens)[:, None], of_ranks),
                start=np.broadcast_to(np.array(start)[:, None], of_ranks),
                end=np.broadcast_to(np.array(end)[:, None], of_ranks),
                source=np.full(steps, Source.ANNOTATED, np.uint8),
            ),
        )
        trace.save(self.path, force=True)
        return trace
