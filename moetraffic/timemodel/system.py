"""System that a layout runs on: speeds, overheads, memory, links, practices.

Every number may be an array that broadcasts with the layouts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np

from moetraffic.arrays import Bool, Float64
from moetraffic.errors import LayoutError
from moetraffic.patterns.bandwidth import BandwidthTable
from moetraffic.patterns.layout import Layout
from moetraffic.spelling import check_choice
from moetraffic.units import byte_size
from moetraffic.workload.rules import Values

from .compute import Gpu
from .traffic import KINDS, Traffic

OVERLAPPING = ("tp", "cp", "pp", "ep", "dp", "edp")
"""Kinds of traffic with a window; a tied embedding's gradient is there last, and the
ends of a model wait for each other."""

OF_INSIDE, OF_NIC = 0.77, 0.85
"""Share of the nominal rate of NVLink and of NICs that a large collective gets: bus
bandwidths of 230 of 300 GB/s on eight A100s and of 21 of 25 GB/s an adapter; assumed,
not fitted."""

INSIDE_STEP_S, BETWEEN_STEP_S = 3.4e-6, 14e-6
"""Latency of a step of NCCL's rings over NVLink and over a network, protocol Simple
(NCCL, src/graph/tuning.cc, hwLat)."""


Bandwidth: TypeAlias = Any
"""Bytes/s that a rank sends: a number or array, a table with ``bandwidth(collective,
ranks, size)``, links with ``speed(calls)`` and perhaps ``latency(calls)``, or one of
these by kind of traffic."""

ALIKE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("edp", "embedding"), ("dp",)),
    **dict.fromkeys(("ends", "cp"), ("tp",)),
}
"""Kinds whose bandwidth is another's, where it is not given."""


@dataclass(frozen=True, kw_only=True)
class System:
    """GPUs and what joins them.

    Raises
    ------
    LayoutError
        If a number is negative, or a kind of traffic is not one of KINDS.
    """

    peak_flops: Values  # F of a GPU in this precision, FLOP/s
    gpu: Gpu | None = None  # computing time by its roofline; None: by utilization
    utilization: Values = 0.4  # u of F while computing, where there is no gpu
    bandwidth: Bandwidth = np.inf  # effective, bytes/s of the wire
    latency_s: Values = 0.0  # of one message of a collective, alpha
    layer_overhead_s: Values = 0.0  # of a layer and micro-batch, all passes together
    iteration_overhead_s: Values = 0.0  # of an iteration
    optimizer_bytes: Values = 28.0  # of memory traffic a parameter; Adam in mixed
    # precision reads gradient 2, reads and writes master copy and moments 8 each, and
    # writes the weight 2
    memory_bytes_s: Values = np.inf  # of a GPU; the optimizer's speed
    memory_bytes: Values = np.inf  # of a GPU
    reserved_bytes: Values = 0.0  # of it: context, buffers of collectives, fragments
    graphs: bool = False  # steps are CUDA graphs: the GPU waits for no kernel launch
    overlap: Mapping[str, Values] = field(default_factory=dict)  # share of a kind's
    # calls that the program overlaps, 0 to 1; WINDOWS has what they hide behind

    def __post_init__(self) -> None:
        for name in NUMBERS:
            value = _number(name, getattr(self, name))
            if (value < 0).any():
                raise LayoutError(
                    f"{name} is at least 0, but is {value.min():g}: raise it"
                )
            object.__setattr__(self, name, value)
        if isinstance(self.bandwidth, Mapping):
            for kind in sorted(set(self.bandwidth) - {"other"}):
                check_choice("a kind of traffic", kind, KINDS, LayoutError)
        for kind, share in self.overlap.items():
            what = "a kind of traffic that overlaps"
            check_choice(what, kind, OVERLAPPING, LayoutError)
            made = _number(f"overlap of {kind}", share)
            if ((made < 0) | (made > 1)).any():
                raise LayoutError(
                    f"the overlap of a kind is a share from 0 to 1, but of {kind} it "
                    f"is {made.max():g}: change it"
                )

    @classmethod
    def of_gpu(
        cls,
        gpu: Gpu,
        bandwidth: Bandwidth,
        *,
        overlap: Mapping[str, Values] | None = None,
    ) -> System:
        """Make the system of a GPU, whose roofline decides the computing time."""
        return cls(
            peak_flops=gpu.peak_flops,
            gpu=gpu,
            bandwidth=bandwidth,
            memory_bytes=gpu.memory_bytes,
            memory_bytes_s=gpu.memory_bytes_s * gpu.memory_share,
            overlap=overlap or {},
        )

    def latency(self, calls: Traffic) -> Float64:
        """Seconds that the messages of some calls wait for each other."""
        links = self._bandwidth_of(calls.kind)
        own = links.latency(calls) if hasattr(links, "latency") else 0.0
        if np.any(self.latency_s):
            own = own + calls.steps * self.latency_s
        return np.asarray(own)

    def speed(self, calls: Traffic) -> Float64:
        """Effective bandwidth of some calls, bytes/s that a rank sends.

        Raises
        ------
        LayoutError
            If nothing is known for their kind, or it is not above 0.
        """
        links = self._bandwidth_of(calls.kind)
        if hasattr(links, "speed"):  # isinstance takes longer than the arithmetic
            made = np.asarray(links.speed(calls))
        elif hasattr(links, "bandwidth"):
            made = links.bandwidth(calls.collective, calls.ranks, calls.buffer)
        else:
            made = _number(f"the bandwidth of {calls.kind}", links)
        if np.any(made <= 0):
            raise LayoutError(
                f"a bandwidth is above 0, but of {calls.kind} it is {made.min():g}: "
                "raise it"
            )
        return made

    def _bandwidth_of(self, kind: str) -> Any:
        if not isinstance(self.bandwidth, Mapping):
            return self.bandwidth
        # what is not told apart goes the way that gradients go
        for name in (kind, *ALIKE.get(kind, ()), "other"):
            if name in self.bandwidth:
                return self.bandwidth[name]
        raise LayoutError(
            f"the bandwidth of {kind} is needed, but only {', '.join(self.bandwidth)} "
            "are given: add it, or 'other'"
        )


NUMBERS = tuple(
    f.name
    for f in fields(System)
    if f.name not in ("bandwidth", "overlap", "gpu", "graphs")
)
"""Fields of a system that are numbers."""


def _number(name: str, given: Values) -> Float64:
    made = np.asarray(given)
    if made.dtype.kind not in "biuf" or np.isnan(made).any():
        raise LayoutError(
            f"{name} is a number or an array of numbers, but is {given!r}: change it"
        )
    return np.asarray(made, np.float64)


# ---- links ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeLinks:
    """Nodes of GPUs that are fast inside and share what their NICs give.

    A ring over nodes leaves each node once: ``q`` members of a group in a node of
    ``G`` GPUs share its NICs with ``G/q`` other groups, so that a rank's ring gets
    ``q/G`` of them.  All-to-all: each rank sends ``(n - q)/(n - 1)`` of its bytes out
    over a ``G``-th of the NICs.  A group inside a node, and anything at most, gets
    ``inside_bytes_s``.
    """

    gpus: Values  # G of a node
    inside_bytes_s: Values  # of a GPU, each way
    nic_bytes_s: Values  # of all NICs of a node, each way
    efficiency: Values = 1.0  # of what is sold, that a collective gets
    inside_step_s: Values = 0.0  # latency of a ring's step inside a node
    between_step_s: Values = 0.0  # and from one node to the next

    @classmethod
    def nominal(
        cls, *, gpus: Values, inside_bytes_s: Values, nic_bytes_s: Values
    ) -> NodeLinks:
        """Nodes of which only the data sheet's rates are known.

        Collectives get the shares of them that large messages of NCCL reach,
        :data:`OF_INSIDE` and :data:`OF_NIC`.
        """
        return cls(
            gpus=gpus,
            inside_bytes_s=OF_INSIDE * inside_bytes_s,
            nic_bytes_s=OF_NIC * nic_bytes_s,
            inside_step_s=INSIDE_STEP_S,
            between_step_s=BETWEEN_STEP_S,
        )

    def latency(self, calls: Traffic) -> Float64:
        """Seconds that messages of these calls wait for each other: a ring has a step
        to each other rank, and leaves a node once."""
        nodes = np.ceil(calls.ranks * calls.stride / self.gpus)
        nodes = np.minimum(nodes, calls.ranks)
        share = (nodes - 1) / np.maximum(calls.ranks - 1, 1)
        step = share * self.between_step_s + (1 - share) * self.inside_step_s
        return np.asarray(calls.steps * step)

    def speed(self, calls: Traffic) -> Float64:
        """Bytes/s that a rank of this group sends."""
        gpus, nic, inside = self.gpus, self.nic_bytes_s, self.inside_bytes_s
        near = np.minimum(np.maximum(np.floor(gpus / calls.stride), 1), calls.ranks)
        out = nic * near / gpus
        if calls.collective == "send_recv":
            out = nic / np.minimum(calls.stride, gpus)
        elif calls.collective == "all_to_all":
            leaving = np.maximum(calls.ranks - near, 1e-9)
            out = nic / gpus * (calls.ranks - 1) / leaving
        within = (calls.stride * calls.ranks <= gpus) | (calls.ranks <= 1)
        speed = np.where(within, inside, np.minimum(inside, out))
        return np.asarray(speed * self.efficiency)


@dataclass(frozen=True, kw_only=True)
class MeasuredLinks:
    """What ``moetraffic bench`` measured, asked by the nodes that a group lies on.

    A group of ``n`` ranks, every ``stride``-th one, lies on ``ceil(n stride/G)`` nodes
    of ``G`` GPUs, or ``n`` if that is fewer.  Measurements are of one group at a time,
    groups beside each other on a node are taken to get as much each.
    """

    table: BandwidthTable
    gpus: int  # of a node
    platform: str | None = None  # which measurements; None: the only ones there are
    protocol: str | None = None

    def speed(self, calls: Traffic) -> Float64:
        """Bytes/s that a rank of this group sends; those of one rank send nothing."""
        return self._asked(calls)[0]

    def extrapolated(self, calls: Traffic) -> str:
        """Name calls of one layout that measurements do not surround, or ""."""
        _, inside, nodes = self._asked(calls)
        size, on = byte_size(float(calls.buffer)), int(nodes)
        what = f"{calls.collective} of {size} over {float(calls.ranks):g} ranks"
        return "" if inside.all() else f"{what} on {on} node{'s' * (on > 1)}"

    def _asked(self, calls: Traffic) -> tuple[Float64, Bool, Float64]:
        """Bytes/s, whether between measurements, and nodes of a group."""
        ranks, stride, size, times = np.broadcast_arrays(
            calls.ranks, calls.stride, calls.buffer, calls.calls
        )
        nodes = np.minimum(np.ceil(ranks * stride / self.gpus), ranks)
        speed, inside = np.full(ranks.shape, np.inf), np.ones(ranks.shape, bool)
        sends = (ranks > 1) & (size > 0) & (times > 0)
        pair = calls.collective == "send_recv"  # measured between two ranks
        for span in np.unique(nodes[sends]):
            some = sends & (nodes == span)
            got = self.table.effective(
                calls.collective,
                2 if pair else ranks[some],
                size[some],
                span=int(min(span, 2) if pair else span),
                platform=self.platform,
                protocol=self.protocol,
            )
            speed[some], inside[some] = got.bytes_s, got.inside
        return speed, inside, nodes


# ---- practices -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Practice:
    """What a library's published recipes do, unless something else is asked for."""

    zero: int  # stage; 1 where there is a pipeline
    overlap: tuple[str, ...]  # kinds of traffic that overlap wholly
    source: str
    tp_parts: bool = False  # tensor-parallel calls overlap in t parts: (t - 1)/t


STACKS: Mapping[str, Practice] = {
    "megatron-bridge": Practice(
        zero=1,
        overlap=("dp", "edp", "pp", "cp"),
        tp_parts=True,
        source="sequence parallelism, distributed optimizer, overlap of gradients, "
        "parameters, pipeline, ring attention and parts of tensor-parallel products "
        "(NVIDIA Megatron-Bridge, performance guide and recipes)",
    ),
    "megatron-lm": Practice(
        zero=1,
        overlap=("dp", "edp"),
        source="sequence parallelism, distributed optimizer, overlap of gradients and "
        "parameters (Megatron-LM, --overlap-grad-reduce --overlap-param-gather)",
    ),
    "fsdp2": Practice(
        zero=3,
        overlap=("dp", "edp"),
        source="fully_shard, sequence parallelism, overlap of gathers and reductions "
        "(torchtitan; ZeRO 1 where there is a pipeline)",
    ),
}
"""Practices by name."""


def practice(
    name: str, layout: Layout, system: System, given: Collection[str] = ()
) -> tuple[Layout, System]:
    """Layout and system under a practice; fields in ``given`` stay as they are."""
    check_choice("a practice", name, STACKS, LayoutError)
    how, c, chosen = STACKS[name], layout, dict[str, Values]()
    if "sequence_parallel" not in given:
        chosen["sequence_parallel"] = np.asarray(c.tp) > 1
    if not {"zero", "synchronization"} & set(given):
        piped = np.asarray(c.pp) > 1
        chosen["zero"] = np.where(piped, np.minimum(how.zero, 1), how.zero)
    if "overlap" not in given:
        overlap: dict[str, Values] = dict.fromkeys(how.overlap, 1.0)
        if how.tp_parts:
            overlap["tp"] = 1 - 1 / np.asarray(c.tp, np.float64)
        system = replace(system, overlap=overlap)
    made = {n: value if value.ndim else value.item() for n, value in chosen.items()}
    return replace(c, **made), system
