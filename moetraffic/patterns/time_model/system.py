"""System that a configuration runs on: speeds, overheads, memory, overlap.

Every number may be an array that broadcasts with the configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeAlias

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.errors import LayoutError
from moetraffic.patterns.rules import choose
from moetraffic.patterns.values import Values, anywhere, numbers

from .calls import Traffic
from .gpus import Gpu
from .overlap import OVERLAPPING
from .traffic import KINDS


class Effective(Protocol):
    """Effective bandwidth as C(collective, ranks, size)."""

    def bandwidth(self, collective: str, ranks: Float64, size: Float64) -> Values:
        """Bytes/s that a rank sends on the wire (nccl-tests' busbw) for a buffer of
        ``size`` bytes in a group of ``ranks``."""
        ...


class Links(Protocol):
    """Bandwidth that knows more of the calls than their sizes."""

    def speed(self, calls: Traffic) -> Float64:
        """Bytes/s that a rank of this group sends."""
        ...


Bandwidth: TypeAlias = Values | Effective | Links | Mapping[str, Values]
"""Bytes/s: a number or array, a table, links, or one of these by kind of traffic."""


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
    overlap: Mapping[str, Values] = field(default_factory=dict)  # share of a kind's
    # calls that the program overlaps, 0 to 1; :mod:`.overlap` has what they hide behind

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name in ("bandwidth", "overlap", "gpu"):
                continue
            made = numbers(one.name, getattr(self, one.name))
            if (made < 0).any():
                raise LayoutError(
                    f"{one.name} is at least 0, but is {made.min():g}: raise it"
                )
            object.__setattr__(self, one.name, made)
        if isinstance(self.bandwidth, Mapping):
            for kind in sorted(set(self.bandwidth) - {"other"}):
                choose("a kind of traffic", kind, KINDS)
        for kind, share in self.overlap.items():
            choose("a kind of traffic that overlaps", kind, OVERLAPPING)
            made = numbers(f"overlap of {kind}", share)
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
        known = self._bandwidth_of(calls.kind)
        own = known.latency(calls) if hasattr(known, "latency") else 0.0
        if anywhere(self.latency_s):
            own = own + calls.steps * self.latency_s
        return np.asarray(own)

    def speed(self, calls: Traffic) -> Float64:
        """Effective bandwidth of some calls, bytes/s that a rank sends.

        Raises
        ------
        LayoutError
            If nothing is known for their kind, or it is not above 0.
        """
        told = self._bandwidth_of(calls.kind)
        # checks of a protocol by isinstance take longer than the arithmetic
        if hasattr(told, "speed"):
            made = np.asarray(told.speed(calls), np.float64)
        elif hasattr(told, "bandwidth"):
            made = numbers(
                f"the bandwidth of {calls.kind}",
                told.bandwidth(calls.collective, calls.ranks, calls.buffer),
            )
        else:
            made = numbers(f"the bandwidth of {calls.kind}", told)
        if anywhere(made <= 0):
            raise LayoutError(
                f"a bandwidth is above 0, but of {calls.kind} it is {made.min():g}: "
                "raise it"
            )
        return made

    def _bandwidth_of(self, kind: str) -> Any:
        told = self.bandwidth
        if not isinstance(told, Mapping):
            return told
        # what is not told apart goes the way that gradients go
        for name in (kind, *ALIKE.get(kind, ()), "other"):
            if name in told:
                return told[name]
        raise LayoutError(
            f"the bandwidth of {kind} is needed, but only {', '.join(told)} are given: "
            "add it, or 'other'"
        )


ALIKE: Mapping[str, tuple[str, ...]] = {
    "edp": ("dp",),
    "embedding": ("dp",),
    "ends": ("tp",),
    "cp": ("tp",),
}
"""Kinds whose bandwidth is another's, where it is not given."""
