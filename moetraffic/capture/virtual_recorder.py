"""Recorder of expert routings of R virtual ranks that are trained in one process.

The training processes the shards of all ranks in one process and reports the routing of
each (:func:`.annotate.shard_routing`).  Nothing is sent; the traffic matrices of expert
parallelism over R ranks are computed from the routing and the expert placement.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from moetraffic.arrays import Int32, UInt8
from moetraffic.patterns import Workload
from moetraffic.trace.choices import packed_bytes
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.merge.merging import Merged
from moetraffic.trace.merge.virtual_ranks import segment_of_shards
from moetraffic.trace.model import Group, Source
from moetraffic.trace.segments.segment import STEP, Segment
from moetraffic.trace.segments.store import SegmentStore, segments_folder

from .annotate import ShardRouting, subscribe_shards
from .input_validation import cause
from .recording import WINDOW_STEPS, Recording, check_output, describe
from .token_sample import TokenSample, choice_bits

WINDOW_BYTES = 32 << 20
SITE = tuple[int, int, int, str, int]  # layer, slot, row bytes, dtype, padded rows
Routed = tuple[int, int, Int32, UInt8]  # site, iteration, copies, bit sets of tokens


class VirtualRecorder(Recording):
    """Recorder of the expert routings of all virtual ranks trained in one process.

    The interface is that of :class:`.Recorder`, with one loss per rank.

    Parameters
    ----------
    path
        The trace to write.  Until the end, segments lie in ``<path>.segments``.
    workload
        The workload; its layout determines the ranks and the expert-parallel groups.
    window
        Maximum number of steps that a killed process loses; records are written twice
        per window.
    token_sample
        Tokens of each rank, layer and micro-batch whose experts are recorded.
    force
        Overwrite ``path`` and remaining files of an earlier capture.

    Raises
    ------
    CaptureError
        If the output cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        workload: Workload,
        window: int = WINDOW_STEPS,
        token_sample: int = 0,
        force: bool = False,
    ) -> None:
        super().__init__(path, token_sample=token_sample, force=force)
        self._sample = TokenSample(token_sample, 0)
        self.spent_s = 0.0  # time that recording has taken in the training thread
        self._workload = workload
        self._window_steps = max(1, window // 2)
        self._ranks = workload.layout.world
        self._groups = [
            Group(kind="ep", ranks=ranks) for ranks in workload.layout.groups("ep")
        ]
        model = workload.model
        self._placements = contiguous_placement(
            self._groups, model.moe_layers, model.experts
        )
        self._sites: dict[SITE, int] = {}
        # of this step: site -> copies [2, R, E], and bit sets of tokens [R, S, B]
        self._step: dict[int, tuple[Int32, UInt8]] = {}
        self._routed: list[Routed] = []
        self._steps: list[Any] = []
        self._kinds: list[str] = []
        self._segments, self._bytes, self._step_start = 0, 0, 0
        self._store: SegmentStore | None = None

    def __enter__(self) -> VirtualRecorder:
        check_output(self.path, force=self._force)
        self._meta = replace(
            describe(self._workload, self._ranks, model="", router="", k=0),
            virtual=True,
            backend="",  # unused, since nothing is sent
        )
        self._store = SegmentStore(segments_folder(self.path), 0, force=self._force)
        self._unsubscribe = subscribe_shards(self._shards)
        self._step_start = time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.end_early(cause(error))
        self.close(merged=kind is None)

    def step(self, *, loss: Sequence[float], tokens: int, kind: str = "train") -> None:
        """End the current step: later records belong to the next step.

        Parameters
        ----------
        loss
            ``[R]`` losses of the ranks.
        tokens
            Number of tokens that each rank trained on.
        kind
            "train", "evaluation" or "skipped".
        """
        now = time.perf_counter_ns()
        rows = np.zeros(self._ranks, STEP)
        rows["iteration"], rows["loss"], rows["tokens"] = self.iteration, loss, tokens
        rows["start"], rows["end"] = self._step_start, now
        rows["source"] = Source.ANNOTATED
        self._steps.append(rows)
        self._kinds += [kind] * self._ranks
        for site, (copies, bits) in self._step.items():
            self._routed.append((site, self.iteration, copies, bits))
            self._bytes += copies.nbytes + bits.nbytes
        self._step = {}
        self.iteration += 1
        if len(self._steps) >= self._window_steps or self._bytes >= WINDOW_BYTES:
            self._commit(final=False)
        self._step_start = time.perf_counter_ns()
        self.spent_s += (self._step_start - now) / 1e9

    def close(self, *, merged: bool = True) -> Merged | None:
        """Stop recording, write the remaining records and merge the segments."""
        if self._store is None:
            return None
        self._unsubscribe()
        if self.iteration or (merged and not self._ended):
            self._commit(final=True)
        store, self._store = self._store, None
        unclosed, written = store.close(), store.writer
        if unclosed:
            self._warn(unclosed)
        if written.error:
            self._warn(f"{written.lost_windows} windows are lost: {written.error}")
        return self._merge(store.folder) if merged else None

    def _shards(self, decided: ShardRouting) -> None:
        began = time.perf_counter_ns()
        counts = decided.demand.detach().cpu().numpy()
        row = decided.row_bytes, decided.dtype, decided.padded
        key = (decided.layer, decided.slot, *row)
        site = self._sites.setdefault(key, len(self._sites))
        if site not in self._step:
            experts = counts.shape[1]
            width = packed_bytes(experts)
            self._step[site] = (
                np.zeros((2, self._ranks, experts), np.int32),
                np.zeros((self._ranks, self._sample.tokens, width), np.uint8),
            )
        rows, bits = self._step[site]
        # a recomputed forward pass reports the same routing again
        mine = slice(decided.first, decided.first + len(counts))
        rows[0, mine] = counts
        rows[1, mine] = decided.dropped.detach().cpu().numpy()
        if self._sample.tokens:
            for rank, chosen in enumerate(decided.chosen, start=decided.first):
                taken = self._sample.take(chosen)
                bits[rank] = choice_bits(taken, rows.shape[2], self._sample.tokens)
        self.spent_s += (time.perf_counter_ns() - began) / 1e9

    def _commit(self, *, final: bool) -> None:
        assert self._store is not None
        window = (self._routed, tuple(self._sites), self._steps, self._kinds)
        index, self._segments = self._segments, self._segments + 1
        self._routed, self._steps, self._kinds, self._bytes = [], [], [], 0
        self._store.commit(lambda: self._build(*window, index, final))

    def _build(
        self,
        routed: list[Routed],
        sites: tuple[SITE, ...],
        steps: list[Any],
        kinds: list[str],
        index: int,
        final: bool,
    ) -> Segment:
        experts = self._workload.model.experts
        rows = np.array([r for _, _, r, _ in routed], np.int32)
        bits = np.array([b for *_, b in routed], np.uint8)
        sampled = bits if self._sample.tokens and len(bits) else None
        return segment_of_shards(
            sites,
            np.array([s for s, *_ in routed], np.int64),
            np.array([i for _, i, *_ in routed], np.int64),
            rows.reshape(-1, 2, self._ranks, experts),
            sampled,
            index=index,
            final=final,
            node=socket.gethostname(),
            meta=self._meta,
            groups=tuple(self._groups),
            placements=self._placements,
            steps=np.concatenate(steps) if steps else np.zeros(0, STEP),
            kinds=tuple(kinds),
            ended=self._ended if final else "",
            window=0 if final else 2 * self._window_steps,
        )
