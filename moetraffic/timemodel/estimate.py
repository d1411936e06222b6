"""The time of an iteration, term by term, of one layout or of many at once.

Overlap is a schedule: a kind that a program overlaps hides behind the compute that its
schedule has for it, a *window*: no longer than the window takes, and only those calls
that have one.  With L equal layers of a stage, whose compute takes b each and whose
calls g, the end of the last call is ``max(L b + g, b + L g)``, so that
``(L-1)/L min(L g, L b)`` are hidden.

References
----------
Gradients: Li et al., arXiv 2006.15704, section 3.2.3; gathers of ZeRO 3: Zhao et al.,
arXiv 2304.11277, section 3.3.2; rings of attention: Liu et al., arXiv 2310.01889,
section 3; parts of tensor-parallel products: arXiv 2205.05198, section 4.2.2, and
Wang et al., ASPLOS 2023; expert exchanges under DualPipe: arXiv 2412.19437, section
3.2.1, figure 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from moetraffic.arrays import Bool, Float64
from moetraffic.errors import LayoutError
from moetraffic.patterns.layout import Layout
from moetraffic.patterns.rules import check, sound
from moetraffic.workload.rules import Values

from .compute import (
    SC21,
    Conventions,
    Memory,
    Operations,
    Passes,
    memory,
    model_operations,
    operations,
    passes,
)
from .system import System
from .traffic import IN_DP, KINDS, Traffic, traffic

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An iteration's time: of each term the rank of the stage that has most of it.

    Arrays have the layout's shape, float64 and seconds where not told otherwise; NaN
    where the layout cannot exist (``sound`` is false).
    """

    config: Layout
    sound: Bool  # bool: no rule of a layout is broken
    compute: Float64  # T_comp
    launches: Float64  # of it, in which the GPU waits for the host's kernel launches
    communication: dict[str, Float64]  # by kind, whether hidden or not
    wire: dict[str, Float64]  # bytes that the rank sends, by kind; of experts that of
    # each exchange which sends or receives most, so that the others wait
    sent: dict[str, Float64]  # bytes that a rank sends in the mean of its stage
    overlapped: dict[tuple[str, str], Float64]  # communication that hides, by kind and
    # by what it hides behind: one of WINDOWS
    overhead: Float64  # of layers and of the iteration
    optimizer: Float64
    bubble: Float64  # T_bubble
    iteration: Float64  # T_iter, the sum
    bubble_share: Float64  # T_bubble of T_iter: APNet'24's R_bubble
    bubble_of_ideal: Float64  # over the time without it; under 1F1B with chunks of the
    # same length (p - 1)/(v m), as in SC'21
    head_share: Float64  # of T_iter: the others wait for the last stage's output layer
    memory: Memory  # bytes of the rank that needs most
    memory_room: Float64  # bytes of a GPU's memory that are not reserved
    fits: Bool  # bool: into this memory
    traffic: tuple[Traffic, ...]  # calls that the communication consists of

    def table(self, index: int = 0) -> pd.DataFrame:
        """Communication of one layout by kind: ``kind``, ``bytes`` that the rank sends,
        ``group_size``, ``calls``, ``time`` and ``hidden`` in seconds."""
        import pandas as pd

        def one(value: Values) -> float:
            return float(np.broadcast_to(value, self.sound.shape).flat[index])

        rows = []
        for kind, time in self.communication.items():
            calls = [t for t in self.traffic if t.kind == kind]
            if not one(self.calls(kind)):
                continue
            hidden = (t for (of, _), t in self.overlapped.items() if of == kind)
            rows.append(
                {
                    "kind": kind,
                    "bytes": one(self.wire[kind]),
                    "group_size": int(max(one(t.ranks) for t in calls)),
                    "calls": one(self.calls(kind)),
                    "time": one(time),
                    "hidden": one(sum(hidden, np.zeros(()))),
                }
            )
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        """Format the terms of one layout's time as an HTML table."""
        import pandas as pd

        names = ("compute", "overhead", "optimizer", "bubble", "iteration")
        parts = {name: np.ravel(getattr(self, name)) for name in names}
        parts |= {kind: np.ravel(time) for kind, time in self.communication.items()}
        parts["hidden"] = np.ravel(self.hidden)
        return str(pd.DataFrame(parts).T.to_html())

    @property
    def hidden(self) -> Float64:
        """Communication that hides behind compute."""
        hidden = sum(self.overlapped.values(), np.zeros(self.sound.shape))
        return np.asarray(np.minimum(hidden, self.compute))  # parts are rounded

    @property
    def tp(self) -> Float64:
        """T_TP, ends included."""
        return self.communication["tp"] + self.communication["ends"]

    @property
    def pp(self) -> Float64:
        """T_PP."""
        return self.communication["pp"]

    @property
    def dp(self) -> Float64:
        """T_DP: gradients and parameters of data parallelism, the tied embedding."""
        return np.asarray(sum(self.communication[kind] for kind in IN_DP))

    @property
    def ep(self) -> Float64:
        """T_EP: all-to-alls of experts."""
        return self.communication["ep"]

    @property
    def cp(self) -> Float64:
        """Of context parallelism."""
        return self.communication["cp"]

    def calls(self, kind: str) -> Float64:
        """Collective calls of a kind in an iteration, of the rank."""
        calls = (c.calls * (c.ranks > 1) for c in self.traffic if c.kind == kind)
        return np.asarray(sum(calls), np.float64)

    def bandwidth(self, kinds: Iterable[str]) -> Float64:
        """Effective bytes/s: what the rank sends or waits for, over its time."""
        kinds = list(kinds)
        moved = sum(c.moved for c in self.traffic if c.kind in kinds)
        took = np.asarray(sum(self.communication[kind] for kind in kinds))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(took > 0, moved / took, np.nan)

    @property
    def all_communication(self) -> Float64:
        """Of all kinds, whether hidden or not."""
        return np.asarray(sum(self.communication.values()))

    @property
    def comm_share(self) -> Float64:
        """R_comm: what is exposed of communication, of T_iter; no bubble in it."""
        return np.asarray((self.all_communication - self.hidden) / self.iteration)

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
    conventions: Conventions = SC21,
    moved: Sequence[Traffic] | None = None,
    strict: bool = True,
) -> Estimate:
    """Estimate the time of an iteration.

    ``T_iter = T_comp + T_TP + T_CP + T_PP + T_EP + T_DP + T_bubble + overheads +
    T_optimizer - hidden`` with ``T_comp = m FLOP/(u F)``, each communication ``bytes a
    rank sends / effective bandwidth + messages x latency``, and ``T_bubble`` the passes
    in which a stage waits, ``(p - 1)/v`` of chunks of the same length, times what a
    micro-batch takes: computing and overhead, and with the convention of APNet'24 its
    communication too.  Of the bubble what hides behind a layer's own compute is no part
    either.

    Parameters
    ----------
    layout
        With its model; lists of 100,000 take a fraction of a second.
    system
        What it runs on.
    conventions
        What published models disagree about.
    moved
        Calls in place of :func:`~.traffic.traffic`'s.
    strict
        Refuse layouts that cannot exist; otherwise they are NaN.

    Raises
    ------
    LayoutError
        If ``strict`` and a rule is broken, or a bandwidth is missing.

    References
    ----------
    Narayanan et al., SC'21, arXiv 2104.04473; 'Understanding Communication
    Characteristics of Distributed Training', APNet'24.
    """
    if not isinstance(layout, Layout) or not isinstance(system, System):
        raise LayoutError(
            f"an estimate takes a Layout and a System, not {layout!r:.40} and "
            f"{system!r:.40}: moetraffic.patterns and moetraffic.timemodel have them"
        )
    if strict:
        check(layout)
    c, s = layout.arrays(), system
    kept = np.ones(c.shape, bool) if strict else sound(c)
    with np.errstate(divide="ignore", invalid="ignore"):
        batches = c.accumulation
        work: Operations | Passes
        launches: Values = 0.0
        waiting: Values = 0.0
        if s.launching is None:
            work = operations(c, conventions)
            compute = batches * work.all / (s.utilization * s.peak_flops)
        else:
            work = passes(c, s.launching)
            launches = batches * work.launches
            # other stages wait for the last one, which has the head, unless it has so
            # much less in its layers; modules that predict further tokens are a mean
            # layer and a head each
            further = c.sizes.mtp * (work.head + work.all / c.stage_layers)
            head = work.head + further
            compute = batches * (work.all + np.where(c.pp > 1, 0.0, head))
            # of DualPipe, with both ends on a rank, for half of the micro-batches
            waiting = np.maximum(head - c.pair * work.spare, 0.0)
            waiting = batches / c.pair * np.where(c.pp > 1, waiting, 0.0)
        layers = batches * c.stage_layers * s.layer_overhead_s
        rows = list(traffic(c, conventions) if moved is None else moved)
        spent = _spent(rows, s)
        times, wire, micro = _sums(rows, spent, c.shape)
        sent = wire
        if moved is None and np.any(c.imbalance != 1):
            even = traffic(replace(layout, imbalance=1.0), conventions)
            sent = _sums(even, spent, c.shape)[1]
        one = compute / batches / work.all
        overlapped: dict[tuple[str, str], Float64] = {}
        if s.overlap:
            seconds = (work.forward, work.backward + work.recomputed, work.core)
            ahead, back, core = (one * part for part in seconds)
            overlapped = hidden(c, rows, spent, s.overlap, (ahead, back, core))
        under = sum(overlapped.values())
        beat = (compute + layers) / batches
        if conventions.bubble == "with-communication":
            own = (t for (kind, _), t in overlapped.items() if kind in ("tp", "cp"))
            beat = beat + (micro - sum(own)) / batches
            if (part := overlapped.get(("ep", "directions"))) is not None:
                # what passes of DualPipe send hides in pairs, or is counted as exposed
                part = part / np.maximum(paired_share(c.pp, batches), 1e-9)
                beat = beat - np.where(c.pair > 1, part / batches, 0.0)
        bubble = c.idle * beat
        if np.any(c.schedule != "1f1b"):
            bubble = _other_bubbles(c, conventions, work, beat, bubble)
        cut = np.where(c.zero > 0, 1.0, 0.0)
        updated = c.stage_held / c.among(c.copies_held) ** cut
        updated = updated + c.stage_experts / c.among(c.expert_copies) ** cut
        optimizer = updated.max(axis=0) * s.optimizer_bytes / s.memory_bytes_s
        overhead = layers + s.iteration_overhead_s
        ideal = bubble / (batches * beat)
        bubble = bubble + waiting
        whole = compute + sum(times.values()) - under + bubble + overhead + optimizer
        needed = memory(c)
        room = s.memory_bytes - s.reserved_bytes
        share, head_share = bubble / whole, waiting / whole
    fits = np.asarray(needed.total <= room)
    shape = np.broadcast_shapes(c.shape, np.shape(whole), np.shape(fits))
    kept = np.broadcast_to(kept, shape)
    every = bool(kept.all())

    def known(value: Values) -> Float64:
        """The value where the layout can exist, NaN elsewhere."""
        if every and np.shape(value) == shape:
            return np.asarray(value)
        return np.where(kept, value, np.nan)

    return Estimate(
        config=c,
        sound=kept,
        compute=known(compute),
        launches=known(launches),
        communication={kind: known(value) for kind, value in times.items()},
        wire={kind: known(value) for kind, value in wire.items()},
        sent={kind: known(value) for kind, value in sent.items()},
        overlapped={name: known(value) for name, value in overlapped.items()},
        overhead=known(overhead),
        optimizer=known(optimizer),
        bubble=known(bubble),
        iteration=known(whole),
        bubble_share=known(share),
        bubble_of_ideal=known(ideal),
        head_share=known(head_share),
        memory=needed,
        memory_room=np.broadcast_to(np.asarray(room, np.float64), shape),
        fits=fits & kept,
        traffic=tuple(rows),
    )


def _spent(rows: Sequence[Traffic], system: System) -> list[Values]:
    """Seconds of each call, one after the other or, where they go on at once, of the
    longest of their kind's groups."""
    spent: list[Values] = []
    together: dict[str, dict[str, Values]] = {}
    for calls in rows:
        if not np.any((calls.calls > 0) & (calls.ranks > 1)):
            spent.append(0.0)  # no bandwidth is asked for what nobody sends
            continue
        time = calls.moved / system.speed(calls) + system.latency(calls)
        spent.append(np.where(calls.calls > 0, time, 0.0))
        if np.any(calls.at_once):
            of = together.setdefault(calls.kind, {})
            part = np.where(calls.at_once, spent[-1], 0.0)
            of[calls.group] = of.get(calls.group, 0.0) + part
    for kind, groups in together.items():
        longest = np.maximum.reduce(np.broadcast_arrays(*groups.values()))
        share = longest / np.maximum(sum(groups.values()), 1e-30)
        for n, calls in enumerate(rows):
            if calls.kind == kind and np.any(calls.at_once):
                spent[n] = spent[n] * np.where(calls.at_once, share, 1.0)
    return spent


def _sums(
    rows: Sequence[Traffic], spent: Sequence[Values], shape: tuple[int, ...]
) -> tuple[dict[str, Float64], dict[str, Float64], Values]:
    """Times and bytes by kind, and the time of what every micro-batch sends."""
    kinds = dict.fromkeys((*KINDS, *(calls.kind for calls in rows)))
    times: dict[str, Float64] = {kind: np.zeros(shape) for kind in kinds}
    wire: dict[str, Float64] = {kind: np.zeros(shape) for kind in kinds}
    micro: Values = np.zeros(shape)
    for calls, time in zip(rows, spent, strict=True):
        if not np.any(calls.calls) or not np.any(calls.ranks > 1):
            continue
        times[calls.kind] = times[calls.kind] + time
        wire[calls.kind] = wire[calls.kind] + calls.wire
        if calls.every_micro_batch:
            micro = micro + time
    return times, wire, micro


def _other_bubbles(
    c: Layout,
    conventions: Conventions,
    work: Operations | Passes,
    beat: Values,
    usual: Values,
) -> Values:
    """Bubbles of ZB-H1 and of DualPipe.

    With F and B of a micro-batch's forward and whole backward pass, W of it for
    gradients of weights: ``(p - 1)(F + B - 2 W)`` of ZB-H1 (Qi et al., arXiv
    2401.10241, table 2, whose B is without W), and ``(p/2 - 1)(F&B + B - 3 W)`` of
    DualPipe, a forward and a backward pass of opposite directions at once being F&B
    (DeepSeek-V3, arXiv 2412.19437, table 2): as long as both, since they compute on the
    same GPU.  W is backward's share by FLOP.
    """
    flop = operations(c, conventions)
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

OF_KIND: Mapping[str, str] = {"tp": "products", "pp": "micro_batches"}
"""Windows of kinds that have one."""

SHARED = {"before_backward": "after_backward", "micro_batch": "after_backward"}
"""Windows that are the same compute."""


def window(call: Traffic, layout: Layout) -> str:
    """The window of a call, one of :data:`WINDOWS`; "" where it has none."""
    if call.kind == "cp":  # of what is gathered or exchanged attention needs all
        return "attention" if call.collective == "send_recv" else ""
    if call.kind == "ep":
        paired = np.any(np.asarray(layout.schedule) == "dualpipe")
        return "directions" if paired else "micro_batches"
    return OF_KIND.get(call.kind, call.point)


def paired_share(stages: Values, micro_batches: Values) -> Values:
    """Share of a rank's forward passes that DualPipe runs with a backward pass of the
    other direction, on the first stage: ``m - 3 p/2 + 1`` of m.

    Examples
    --------
    >>> float(paired_share(4, 20))
    0.75
    """
    return np.maximum(micro_batches - 1.5 * stages + 1, 0.0) / micro_batches


def hidden(
    layout: Layout,
    moved: Sequence[Traffic],
    spent: Sequence[Values],
    shares: Mapping[str, Values],
    passes: tuple[Values, Values, Values],
) -> dict[tuple[str, str], Float64]:
    """Seconds of communication that hide, by kind and window.

    Parameters
    ----------
    layout
        Any.
    moved, spent
        Calls of an iteration, and the seconds that each takes.
    shares
        By kind, the share of its calls that the program overlaps.
    passes
        Seconds of one micro-batch on a rank: forward, backward with what is computed
        again, and of these the attention core.
    """
    c, (forward, backward, core) = layout.arrays(), passes
    m, both = c.accumulation, forward + backward
    rest = 1 - 1 / c.stage_layers
    other = np.where(c.pair > 1, paired_share(c.pp, m), 1 - 1 / m)
    ring = c.cp / c.inner
    room: dict[str, Values] = {
        "gradients": rest * backward,
        "parameters": rest * forward,
        "before_forward": rest * m * forward,
        "after_backward": rest * m * backward,
        "products": m * (both - core),
        "attention": m * core * (1 - 1 / ring),
        "micro_batches": m * both,
        "directions": other * m * both,
    }
    # what of the calls comes while there is compute left
    of, dense = c.sizes, c.stages.dense[0] > 0
    split = np.where(dense, of.dense_split, of.sparse_split)
    a_layer = split / c.tp + np.where(dense, of.dense_whole, of.sparse_whole)
    early = 1 - (a_layer + c.table + of.first_whole) / np.maximum(c.held, 1.0)
    ahead = np.where(c.prefetch > 0, rest, 0.0)
    wanted: dict[tuple[str, str], Values] = {}
    for call, time in zip(moved, spent, strict=True):
        name = window(call, c)
        if call.kind not in shares or not name:
            continue
        part: Values = 1.0
        if name in ("gradients", "parameters"):
            part = np.maximum(early, 0.0) if call.kind == "dp" else rest
        elif name in ("before_forward", "before_backward"):
            part = ahead
        elif call.point:
            part = rest
        elif call.kind == "ep":
            part = other
        key = call.kind, name
        wanted[key] = wanted.get(key, 0.0) + shares[call.kind] * part * time
    asked: dict[str, Values] = {}
    for (_, name), time in wanted.items():
        name = SHARED.get(name, name)
        asked[name] = asked.get(name, 0.0) + time
    share = {
        name: np.minimum(1.0, room[name] / np.maximum(time, 1e-30))
        for name, time in asked.items()
    }
    times = {key: t * share[SHARED.get(key[1], key[1])] for key, t in wanted.items()}
    # no second of compute hides more than one second, whatever it is of
    whole = np.maximum(sum(times.values(), np.zeros(c.shape)), 1e-30)
    most = np.minimum(1.0, m * both / whole)
    return {key: np.asarray(time * most) for key, time in times.items()}
