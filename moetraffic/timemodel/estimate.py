"""The time of an iteration, term by term, of one layout or of many at once.

Overlap is a schedule: a kind that a program overlaps hides behind the compute that its
schedule has for it, a *window*: no longer than the window takes, and only those calls
that have one.  With L equal layers of a stage, whose compute takes b each and whose
calls g, the end of the last call is ``max(L b + g, b + L g)``, so that
``(L-1)/L min(L g, L b)`` are hidden.

References
----------
Narayanan et al., SC'21, arXiv 2104.04473; 'Understanding Communication Characteristics
of Distributed Training', APNet'24.  Overlap of gradients: Li et al., arXiv 2006.15704,
section 3.2.3; gathers of ZeRO 3: Zhao et al., arXiv 2304.11277, section 3.3.2; rings of
attention: Liu et al., arXiv 2310.01889, section 3; parts of tensor-parallel products:
arXiv 2205.05198, section 4.2.2, and Wang et al., ASPLOS 2023; expert exchanges under
DualPipe: arXiv 2412.19437, section 3.2.1, figure 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moetraffic.arrays import Bool, Float64
from moetraffic.errors import LayoutError
from moetraffic.patterns.layout import Layout
from moetraffic.patterns.rules import check, sound
from moetraffic.workload.rules import Values

from .compute import Memory, Work, memory, model_operations, operations, passes
from .system import System
from .traffic import KINDS, Traffic, traffic

Hidden = dict[tuple[str, str], Float64]
"""Seconds of communication by kind and by what it hides behind: one of WINDOWS."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An iteration's time: of each term the rank of the stage that has most of it.

    Arrays have the layout's shape, float64 and seconds where not told otherwise; NaN
    where the layout cannot exist (``sound`` is false).
    """

    config: Layout
    sound: Bool  # no rule of a layout is broken
    compute: Float64  # T_comp
    launches: Float64  # of it, in which the GPU waits for the host's kernel launches
    communication: dict[str, Float64]  # by kind, whether hidden or not
    wire: dict[str, Float64]  # bytes that the rank sends, by kind; of experts that of
    # each exchange which sends or receives most, so that the others wait
    sent: dict[str, Float64]  # bytes that a rank sends in the mean of its stage
    overlapped: Hidden
    overhead: Float64  # of layers and of the iteration
    optimizer: Float64
    bubble: Float64  # T_bubble
    iteration: Float64  # T_iter, the sum
    bubble_of_ideal: Float64  # over the time without it; under 1F1B with chunks of the
    # same length (p - 1)/(v m), as in SC'21
    head_share: Float64  # of T_iter: the others wait for the last stage's output layer
    memory: Memory  # bytes of the rank that needs most
    memory_room: Float64  # bytes of a GPU's memory that are not reserved
    fits: Bool  # into this memory
    traffic: tuple[Traffic, ...]  # calls that the communication consists of

    @property
    def hidden(self) -> Float64:
        """Communication that hides behind compute."""
        hidden = sum(self.overlapped.values(), np.zeros(self.sound.shape))
        return np.asarray(np.minimum(hidden, self.compute))  # parts are rounded

    def time(self, kinds: Iterable[str]) -> Float64:
        """Communication of some kinds, whether hidden or not."""
        return np.asarray(sum(self.communication[kind] for kind in kinds))

    tp = property(lambda self: self.time(("tp", "ends")), doc="T_TP, ends included.")
    pp = property(lambda self: self.time(("pp",)), doc="T_PP.")
    dp = property(
        lambda self: self.time(("dp", "edp", "embedding")),
        doc="T_DP: gradients and parameters, those of the tied embedding too.",
    )
    ep = property(lambda self: self.time(("ep",)), doc="T_EP: all-to-alls of experts.")
    cp = property(lambda self: self.time(("cp",)), doc="T_CP.")

    @property
    def all_communication(self) -> Float64:
        """Of all kinds, whether hidden or not."""
        return self.time(self.communication)

    def calls(self, kind: str) -> Float64:
        """Collective calls of a kind in an iteration, of the rank."""
        calls = (c.calls * (c.ranks > 1) for c in self.traffic if c.kind == kind)
        return np.asarray(sum(calls), np.float64)

    def bandwidth(self, kinds: Iterable[str]) -> Float64:
        """Effective bytes/s: what the rank sends or waits for, over its time."""
        kinds = list(kinds)
        moved = sum(c.moved for c in self.traffic if c.kind in kinds)
        took = self.time(kinds)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(took > 0, moved / took, np.nan)

    @property
    def comm_share(self) -> Float64:
        """R_comm: what is exposed of communication, of T_iter; no bubble in it."""
        return np.asarray((self.all_communication - self.hidden) / self.iteration)

    @property
    def bubble_share(self) -> Float64:
        """T_bubble of T_iter: APNet'24's R_bubble."""
        return np.asarray(self.bubble / self.iteration)

    @property
    def waiting_share(self) -> Float64:
        """R_comm as others count it: the bubble is communication too."""
        return self.comm_share + self.bubble_share

    @property
    def tokens_s(self) -> Float64:
        """Tokens a second of all ranks."""
        c = self.config
        return np.asarray(c.sequences * c.sizes.sequence / self.iteration)

    @property
    def flops_gpu(self) -> Float64:
        """FLOP/s of a GPU that the model asks for, recomputation not counted."""
        a_gpu = model_operations(self.config) / self.config.world
        return np.asarray(a_gpu / self.iteration)


def estimate(
    layout: Layout,
    system: System,
    *,
    moved: Sequence[Traffic] | None = None,
    strict: bool = True,
) -> Estimate:
    """Estimate the time of an iteration.

    ``T_iter = T_comp + T_TP + T_CP + T_PP + T_EP + T_DP + T_bubble + overheads +
    T_optimizer - hidden`` with ``T_comp = m FLOP/(u F)``, each communication ``bytes a
    rank sends / effective bandwidth + messages x latency``, and ``T_bubble`` the passes
    in which a stage waits, ``(p - 1)/v`` of chunks of the same length, times what a
    micro-batch takes: computing, overhead, and its communication that does not hide
    behind a layer's own compute (APNet'24).

    Parameters
    ----------
    layout
        With its model; lists of 100,000 take a fraction of a second.
    system
        What it runs on.
    moved
        Calls in place of :func:`~.traffic.traffic`'s.
    strict
        Refuse layouts that cannot exist; otherwise they are NaN.

    Raises
    ------
    LayoutError
        If ``strict`` and a rule is broken, or a bandwidth is missing.
    """
    if not isinstance(layout, Layout) or not isinstance(system, System):
        raise LayoutError(
            f"an estimate takes a Layout and a System, not {layout!r:.40} and "
            f"{system!r:.40}: moetraffic.patterns and moetraffic.timemodel have them"
        )
    if strict:
        check(layout)
    c, s = layout.arrays(), system
    kept, m = sound(c) if not strict else np.ones(c.shape, bool), c.accumulation
    with np.errstate(divide="ignore", invalid="ignore"):
        # Step 1: computing.  Other stages wait for the last one, which has the head,
        # unless it has so much less in its layers; under DualPipe, with both ends on a
        # rank, for half of the micro-batches.
        if s.gpu is None:
            work = operations(c)
            unit = m / (s.utilization * s.peak_flops)
        else:
            work, unit = passes(c, s.gpu, graphs=s.graphs), m
        compute = unit * (work.all + np.where(c.pp > 1, 0.0, work.head))
        waiting = np.maximum(work.head - c.pair * work.spare, 0.0)
        waiting = m / c.pair * np.where(c.pp > 1, waiting, 0.0)
        layers = m * c.stage_layers * s.layer_overhead_s
        # Step 2: communication, and what hides of it.
        calls = traffic(c) if moved is None else moved
        rows = [row for row in calls if np.any((row.calls > 0) & (row.ranks > 1))]
        spent = _spent(rows, s)
        wire = sent = _sums(rows, [row.wire for row in rows], c.shape)
        if moved is None and np.any(c.imbalance != 1):
            even = traffic(replace(layout, imbalance=1.0))
            sent = _sums(even, [row.wire for row in even], c.shape)
        times = _sums(rows, spent, c.shape)
        overlapped: Hidden = {}
        if s.overlap:
            overlapped = _hidden(c, rows, spent, s.overlap, work, compute / m)
        # Step 3: the bubble, of what a micro-batch takes, a beat.
        repeated = zip(rows, spent, strict=True)
        own = sum(time for row, time in repeated if row.every_micro_batch)
        for (kind, window), time in overlapped.items():
            if kind in ("tp", "cp"):
                own = own - time
            if window == "directions":
                # what passes of DualPipe send hides in pairs, or is counted as exposed
                paired = np.maximum(paired_share(c.pp, m), 1e-9)
                own = own - np.where(c.pair > 1, time / paired, 0.0)
        beat = (compute + layers + own) / m
        bubble = c.idle * beat
        if np.any(c.schedule != "1f1b"):
            bubble = _other_bubbles(c, work, beat, bubble)
        # Step 4: the update of what a rank holds, and the sum.
        cut = np.where(c.zero > 0, 1.0, 0.0)
        updated = c.stage_held / c.among(c.copies_held) ** cut
        updated = updated + c.stage_experts / c.among(c.expert_copies) ** cut
        optimizer = updated.max(axis=0) * s.optimizer_bytes / s.memory_bytes_s
        overhead = layers + s.iteration_overhead_s
        moving = sum(times.values()) - sum(overlapped.values())
        whole = compute + moving + bubble + waiting + overhead + optimizer
        ideal, head_share = bubble / (m * beat), waiting / whole
        needed, room = memory(c), s.memory_bytes - s.reserved_bytes
    fits = np.asarray(needed.total <= room)
    kept = np.broadcast_to(kept, np.broadcast_shapes(np.shape(whole), fits.shape))

    def known(value: Values) -> Float64:
        """The value where the layout can exist, NaN elsewhere."""
        return np.where(kept, value, np.nan)

    return Estimate(
        config=c,
        sound=kept,
        compute=known(compute),
        launches=known(m * work.launches),
        communication={kind: known(value) for kind, value in times.items()},
        wire={kind: known(value) for kind, value in wire.items()},
        sent={kind: known(value) for kind, value in sent.items()},
        overlapped={name: known(value) for name, value in overlapped.items()},
        overhead=known(overhead),
        optimizer=known(optimizer),
        bubble=known(bubble + waiting),
        iteration=known(whole),
        bubble_of_ideal=known(ideal),
        head_share=known(head_share),
        memory=needed,
        memory_room=np.broadcast_to(room, kept.shape),
        fits=fits & kept,
        traffic=tuple(calls),
    )


def _spent(rows: Sequence[Traffic], system: System) -> list[Float64]:
    """Seconds of calls, one after the other or, where they go on at once, of the
    longest of their kind's groups."""
    spent = [
        np.where(row.calls > 0, row.moved / system.speed(row) + system.latency(row), 0)
        for row in rows
    ]
    for kind in {row.kind for row in rows if np.any(row.at_once)}:
        groups: dict[str, Float64] = {}
        places = [n for n, row in enumerate(rows) if row.kind == kind]
        for n in places:
            together = np.where(rows[n].at_once, spent[n], 0.0)
            groups[rows[n].group] = groups.get(rows[n].group, 0.0) + together
        longest = np.maximum.reduce(np.broadcast_arrays(*groups.values()))
        share = longest / np.maximum(sum(groups.values()), 1e-30)
        for n in places:
            spent[n] = spent[n] * np.where(rows[n].at_once, share, 1.0)
    return spent


def _sums(
    rows: Sequence[Traffic], values: Sequence[Values], shape: tuple[int, ...]
) -> dict[str, Float64]:
    """Sum the values of calls by their kind."""
    sums = {kind: np.zeros(shape) for kind in (*KINDS, *(row.kind for row in rows))}
    for row, value in zip(rows, values, strict=True):
        sums[row.kind] = sums[row.kind] + value
    return sums


def _other_bubbles(c: Layout, work: Work, beat: Values, usual: Values) -> Values:
    """Bubbles of ZB-H1 and of DualPipe.

    With F and B of a micro-batch's forward and whole backward pass, W of it for
    gradients of weights: ``(p - 1)(F + B - 2 W)`` of ZB-H1 (Qi et al., arXiv
    2401.10241, table 2, whose B is without W), and ``(p/2 - 1)(F&B + B - 3 W)`` of
    DualPipe, a forward and a backward pass of opposite directions at once being F&B
    (DeepSeek-V3, arXiv 2412.19437, table 2): as long as both, since they compute on the
    same GPU.  W is backward's share by FLOP.
    """
    flop = operations(c)
    backward = beat * (work.backward + work.recomputed) / work.all
    weights = beat * work.backward / work.all * flop.weights / flop.backward
    h1 = (c.pp - 1) * np.maximum(beat - 2 * weights, 0)
    both = (c.pp / 2 - 1) * np.maximum(beat + backward - 3 * weights, 0)
    usual = np.where(c.schedule == "zb-h1", h1, usual)
    return np.where(c.schedule == "dualpipe", both, usual)


# ---- overlap -------------------------------------------------------------------------

WINDOWS: Mapping[str, str] = {
    "gradients": "the last backward pass through the layers before",
    "parameters": "the next forward pass through the layers before",
    "micro_batch": "each backward pass through the layers before",
    "before_forward": "the forward pass of the layer before",
    "before_backward": "the backward pass of the layer behind",
    "after_backward": "the backward pass of the layer before",
    "products": "the layer's own matrix products",
    "attention": "attention to the keys and values that are there",
    "micro_batches": "the compute of another micro-batch",
    "directions": "the compute of the opposite direction's micro-batch",
}
"""Compute behind which calls hide, by the name of a window."""

SHARED = {"before_backward": "after_backward", "micro_batch": "after_backward"}
"""Windows that are the same compute."""


def paired_share(stages: Values, micro_batches: Values) -> Values:
    """Share of a rank's forward passes that DualPipe runs with a backward pass of the
    other direction, on the first stage: ``m - 3 p/2 + 1`` of m.

    Examples
    --------
    >>> float(paired_share(4, 20))
    0.75
    """
    return np.maximum(micro_batches - 1.5 * stages + 1, 0.0) / micro_batches


def _hidden(
    c: Layout,
    rows: Sequence[Traffic],
    spent: Sequence[Values],
    shares: Mapping[str, Values],
    work: Work,
    computing: Values,
) -> Hidden:
    """Seconds of communication that hide.

    ``rows`` are calls of an iteration, ``spent`` the seconds of each, ``shares`` what
    the program overlaps of a kind; a micro-batch's ``work`` takes ``computing`` s.
    """
    m, unit = c.accumulation, computing / work.all
    forward, backward = unit * work.forward, unit * (work.backward + work.recomputed)
    both, core = forward + backward, unit * work.core
    rest = 1 - 1 / c.stage_layers
    other = np.where(c.pair > 1, paired_share(c.pp, m), 1 - 1 / m)
    room: dict[str, Values] = {
        "gradients": rest * backward,
        "parameters": rest * forward,
        "before_forward": rest * m * forward,
        "after_backward": rest * m * backward,
        "products": m * (both - core),
        "attention": m * core * (1 - c.inner / c.cp),
        "micro_batches": m * both,
        "directions": other * m * both,
    }
    # what of the calls comes while there is compute left
    sizes, dense = c.sizes, c.stages.dense[0] > 0
    split = np.where(dense, sizes.dense_split, sizes.sparse_split)
    a_layer = split / c.tp + np.where(dense, sizes.dense_whole, sizes.sparse_whole)
    early = 1 - (a_layer + c.table + sizes.first_whole) / np.maximum(c.held, 1.0)
    early = np.maximum(early, 0.0)
    exchanged = "directions" if np.any(c.schedule == "dualpipe") else "micro_batches"
    windows = {"tp": "products", "pp": "micro_batches", "ep": exchanged}
    times: Hidden = {}
    for row, time in zip(rows, spent, strict=True):
        name = windows.get(row.kind, row.point)
        if row.kind == "cp":  # of what is gathered or exchanged attention needs all
            name = "attention" if row.collective == "send_recv" else ""
        if row.kind not in shares or not name:
            continue
        part: Values = 1.0
        if name in ("before_forward", "before_backward"):
            part = np.where(c.prefetch > 0, rest, 0.0)
        elif row.point:
            once = row.kind == "dp" and name in ("gradients", "parameters")
            part = early if once else rest
        elif row.kind == "ep":
            part = other
        key = row.kind, name
        times[key] = times.get(key, 0.0) + shares[row.kind] * part * time
    asked: dict[str, Values] = {}
    for (_, name), time in times.items():
        name = SHARED.get(name, name)
        asked[name] = asked.get(name, 0.0) + time
    for key, time in times.items():
        name = SHARED.get(key[1], key[1])
        share = np.minimum(1.0, room[name] / np.maximum(asked[name], 1e-30))
        times[key] = time * share
    # no second of compute hides more than one second, whatever it is of
    whole = np.maximum(sum(times.values(), np.zeros(c.shape)), 1e-30)
    most = np.minimum(1.0, m * both / whole)
    return {key: np.asarray(time * most) for key, time in times.items()}
