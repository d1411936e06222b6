"""The time of an iteration, term by term, of one configuration or of many at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from moetraffic.arrays import Bool, Float64
from moetraffic.errors import LayoutError
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.schedules import SCHEDULES
from moetraffic.patterns.layouts.violations import violations
from moetraffic.patterns.rules import refuse
from moetraffic.patterns.values import Values, anywhere, where
from moetraffic.tables import Table

from .calls import Traffic
from .conventions import SC21, Conventions
from .memory import Memory, memory
from .operations import Operations, model_operations, operations
from .overlap import hidden, paired_share
from .roofline import Passes, passes
from .system import System
from .tensor_lists import list_time
from .traffic import IN_DP, KINDS, traffic


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An iteration's time: of each term the rank of the stage that has most of it.

    Arrays have the configuration's shape, float64 and seconds where not told
    otherwise; NaN where the configuration cannot exist (``sound`` is false).
    """

    config: Configuration
    sound: Bool  # bool: no rule of a configuration is broken
    compute: Float64  # T_comp
    launches: Float64  # of it, in which the GPU waits for the host's kernel launches
    communication: dict[str, Float64]  # by kind of KINDS, whether hidden or not
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

    def _repr_html_(self) -> str:
        """Format the terms of one configuration's time as an HTML table."""
        if np.size(self.iteration) != 1:
            times = np.asarray(self.iteration)
            rows: list[tuple[str, object]] = [("configurations", times.size)]
            if np.isfinite(times).any():
                rows.append(("fastest iteration, s", float(np.nanmin(times))))
            return Table(title="estimates", rows=rows).to_html()
        parts = {
            "computing": self.compute,
            **{f"{kind} traffic": time for kind, time in self.communication.items()},
            "hidden under computing": -self.hidden,
            "overhead": self.overhead,
            "optimizer": self.optimizer,
            "bubble": self.bubble,
            "iteration": self.iteration,
        }
        cells = [(name, float(np.ravel(time)[0])) for name, time in parts.items()]
        return Table(title="estimate", columns=("part", "s"), rows=cells).to_html()

    @property
    def hidden(self) -> Float64:
        """Communication that hides behind compute."""
        found = sum(self.overlapped.values(), np.zeros(self.sound.shape))
        return np.asarray(np.minimum(found, self.compute))  # parts are rounded

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
        found = (c.calls * (c.ranks > 1) for c in self.traffic if c.kind == kind)
        return np.asarray(sum(found), np.float64)

    def bandwidth(self, kinds: Iterable[str]) -> Float64:
        """Effective bytes/s: what the rank sends or waits for, over its time."""
        moved = sum(c.moved for c in self.traffic if c.kind in kinds)
        took = sum(self.communication[kind] for kind in kinds)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(np.asarray(took) > 0, moved / np.asarray(took), np.nan)

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
    config: Configuration,
    system: System,
    *,
    conventions: Conventions = SC21,
    strict: bool = True,
) -> Estimate:
    """Estimate the time of an iteration.

    ``T_iter = T_comp + T_TP + T_CP + T_PP + T_EP + T_DP + T_bubble + overheads +
    T_optimizer - hidden`` with ``T_comp = m FLOP/(u F)``, each communication ``bytes a
    rank sends / effective bandwidth + messages x latency``, and ``T_bubble`` the passes
    in which a stage waits, ``(p - 1)/v`` of chunks of the same length, times what a
    micro-batch takes: computing and overhead, and with the convention of APNet'24 its
    communication too.

    Overlap: kinds in ``system.overlap`` hide behind the compute that their schedule has
    for them (:mod:`.overlap`).  Of the bubble what hides behind a layer's own compute
    is no part either.

    Parameters
    ----------
    config
        Numbers, or arrays that broadcast: 100,000 take a fraction of a second.
    system
        What it runs on.
    conventions
        What published models disagree about.
    strict
        Refuse configurations that cannot exist; otherwise they are NaN.

    Raises
    ------
    LayoutError
        If ``strict`` and a rule is broken, or a bandwidth is missing.

    References
    ----------
    Narayanan et al., SC'21, arXiv 2104.04473; 'Understanding Communication
    Characteristics of Distributed Training', APNet'24.
    """
    for given, kind in ((config, Configuration), (system, System)):
        if not isinstance(given, kind):
            raise LayoutError(
                f"an estimate takes a Configuration and a System, not {given!r:.60}: "
                "moetraffic.patterns.time_model has both; or run moetraffic estimate"
            )
    c, s = config, system
    rules = violations(c)
    if strict:
        refuse(rules)
    with np.errstate(divide="ignore", invalid="ignore"):
        batches = c.accumulation
        work: Operations | Passes
        if s.gpu is None:
            work = operations(c, conventions)
            compute = batches * work.all / (s.utilization * s.peak_flops)
            waiting: Values = 0.0
            launches: Values = 0.0
        else:
            work = passes(c, s.gpu)
            launches = batches * work.launches
            # other stages wait for the last one, which has the head, unless it has so
            # much less in its layers
            # modules that predict further tokens are a mean layer and a head each
            further = c.sizes.mtp * (work.head + work.all / c.stage_layers)
            head = work.head + further
            compute = batches * (work.all + where(c.pp > 1, 0.0, head))
            # of DualPipe, with both ends on a rank, for half of the micro-batches
            waiting = np.maximum(head - c.pair * work.spare, 0.0)
            waiting = batches / c.pair * where(c.pp > 1, waiting, 0.0)
        layers = batches * c.stage_layers * s.layer_overhead_s
        moved = traffic(c, conventions)
        spent = _spent(moved, s)
        times, wire, micro = _sums(moved, spent, c.shape)
        sent = wire
        if anywhere(c.imbalance != 1):
            even = traffic(replace(c, imbalance=1), conventions)
            sent = _sums(even, spent, c.shape)[1]
        one = compute / batches / work.all
        overlapped: dict[tuple[str, str], Float64] = {}
        if s.overlap:
            seconds = (work.forward, work.backward + work.recomputed, work.core)
            ahead, back, core = (one * part for part in seconds)
            overlapped = hidden(c, moved, spent, s.overlap, (ahead, back, core))
        under = sum(overlapped.values())
        beat = (compute + layers) / batches
        if conventions.bubble == "with-communication":
            own = (t for (kind, _), t in overlapped.items() if kind in ("tp", "cp"))
            beat = beat + (micro - sum(own)) / batches
            if (part := overlapped.get(("ep", "directions"))) is not None:
                # what passes of DualPipe send hides in pairs, or is counted as exposed
                part = part / np.maximum(paired_share(c.pp, batches), 1e-9)
                paired = c.schedule == SCHEDULES.index("dualpipe")
                beat = beat - where(paired, part / batches, 0.0)
        bubble = c.idle * beat
        if anywhere(c.schedule > 0):
            bubble = _other_bubbles(c, conventions, work, beat, bubble)
        cut = where(c.zero > 0, 1.0, 0.0)
        updated = c.stage_held / c.among(c.copies_held) ** cut
        updated = updated + c.stage_experts / c.among(c.expert_copies) ** cut
        optimizer = updated.max(axis=0) * s.optimizer_bytes / s.memory_bytes_s
        overhead = layers + s.iteration_overhead_s
        ideal = bubble / (batches * beat)
        bubble = bubble + waiting
        whole = compute + sum(times.values()) - under + bubble + overhead + optimizer
        needed = memory(c)
        room = s.memory_bytes - s.reserved_bytes
        fits = np.asarray(needed.total <= room)
        share, head_share = bubble / whole, waiting / whole
    shape = np.broadcast_shapes(c.shape, np.shape(whole), np.shape(fits))
    sound = np.ones(shape, bool)
    for rule in rules:
        if anywhere(rule.broken):
            sound = sound & ~np.asarray(rule.broken)
    every = bool(sound.all())

    def known(value: Values) -> Float64:
        """The value where the configuration can exist, NaN elsewhere."""
        if every and getattr(value, "shape", None) == shape:
            return np.asarray(value)
        return np.where(sound, value, np.nan)

    return Estimate(
        config=c,
        sound=sound,
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
        fits=fits & sound,
        traffic=tuple(moved),
    )


def _spent(moved: list[Traffic], system: System) -> list[Values]:
    """Seconds of each call, one after the other or, where they go on at once, of the
    longest of their kind's groups."""
    found: list[Values] = []
    together: dict[str, dict[str, Values]] = {}
    for calls in moved:
        if not anywhere(calls.calls) or not anywhere(calls.ranks > 1):
            found.append(0.0)  # no bandwidth is asked for what nobody sends
            continue
        spent = calls.moved / system.speed(calls) + system.latency(calls)
        if anywhere(calls.entries):
            spent = spent + list_time(calls, system.memory_bytes_s)
        found.append(where(calls.calls > 0, spent, 0.0))
        if anywhere(calls.at_once):
            of = together.setdefault(calls.kind, {})
            part = where(calls.at_once, found[-1], 0.0)
            of[calls.group] = of.get(calls.group, 0.0) + part
    for kind, groups in together.items():
        longest = np.maximum.reduce(np.broadcast_arrays(*groups.values()))
        share = longest / np.maximum(sum(groups.values()), 1e-30)
        for at, calls in enumerate(moved):
            if calls.kind == kind and anywhere(calls.at_once):
                found[at] = found[at] * where(calls.at_once, share, 1.0)
    return found


def _sums(
    moved: list[Traffic], spent: list[Values], shape: tuple[int, ...]
) -> tuple[dict[str, Float64], dict[str, Float64], Values]:
    """Times and bytes by kind, and the time of what every micro-batch sends."""
    times: dict[str, Float64] = {kind: np.zeros(shape) for kind in KINDS}
    wire: dict[str, Float64] = {kind: np.zeros(shape) for kind in KINDS}
    micro: Values = np.zeros(shape)
    for calls, time in zip(moved, spent, strict=True):
        if not anywhere(calls.calls) or not anywhere(calls.ranks > 1):
            continue
        times[calls.kind] = times[calls.kind] + time
        wire[calls.kind] = wire[calls.kind] + calls.wire
        if calls.every_micro_batch:
            micro = micro + time
    return times, wire, micro


def _other_bubbles(
    c: Configuration,
    conventions: Conventions,
    work: Operations | Passes,
    beat: Values,
    usual: Values,
) -> Values:
    """Bubbles of zero-bubble schedules and of DualPipe.

    With F and B of a micro-batch's forward and whole backward pass, W of it for
    gradients of weights: ``(p - 1)(F + B - 2 W)`` of ZB-H1, ``(p - 1)(F + B - 3 W)`` of
    ZB-H2 (Qi et al., arXiv 2401.10241, table 2, whose B is without W), and
    ``(p/2 - 1)(F&B + B - 3 W)`` of DualPipe, a forward and a backward pass of opposite
    directions at once being F&B (DeepSeek-V3, arXiv 2412.19437, table 2): as long as
    both, since they compute on the same GPU.  W is backward's share by FLOP.
    """
    flop = operations(c, conventions)
    backward = beat * (work.backward + work.recomputed) / work.all
    weights = beat * work.backward / work.all * flop.weights / flop.backward
    forms = {
        "zb-h1": (c.pp - 1) * np.maximum(beat - 2 * weights, 0),
        "zb-h2": (c.pp - 1) * np.maximum(beat - 3 * weights, 0),
        "dualpipe": (c.pp / 2 - 1) * np.maximum(beat + backward - 3 * weights, 0),
    }
    for name, bubble in forms.items():
        usual = where(c.schedule == SCHEDULES.index(name), bubble, usual)
    return usual
