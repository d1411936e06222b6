"""GPUs for the time model: data sheets, and what is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moetraffic.data import published
from moetraffic.patterns.values import Values

MATMUL_SHARE, MEMORY_SHARE = 0.732, 0.741
"""Fitted to the even rows of table 1 of SC'21, on A100s; :mod:`moetraffic.studies` has
the fit, and its errors on tables that were not fitted."""


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """Measured speed of fused causal attention, forward and backward."""

    name: str
    flops: tuple[float, float]  # FLOP/s of the causal half, long sequences, wide heads
    tokens: tuple[float, float]  # of a sequence at which half of it is reached
    width: tuple[float, float]  # of a head at which half of it is reached

    def seconds(
        self, flop: Values, sequence: Values, width: Values
    ) -> tuple[Values, Values]:
        """Seconds of a forward pass of so many FLOP, and of its backward pass, which
        has 2.5 times as many."""
        kinds = zip(self.flops, self.tokens, self.width, (1, 2.5), strict=True)
        ahead, back = (
            more * flop / rate * (1 + tokens / sequence) * (1 + wide / width)
            for rate, tokens, wide, more in kinds
        )
        return ahead, back


def _kernel(row: Mapping[str, str]) -> AttentionKernel:
    def both(name: str, unit: float = 1.0) -> tuple[float, float]:
        return unit * float(row[f"forward_{name}"]), unit * float(
            row[f"backward_{name}"]
        )

    return AttentionKernel(
        name=row["kernel"],
        flops=both("tflops", 1e12),
        tokens=both("tokens"),
        width=both("width"),
    )


ATTENTION = {row["kernel"]: _kernel(row) for row in published("attention_kernels")}
"""By name; measured on an H200."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: its data sheet, and what is fitted."""

    name: str
    peak_flops: float  # dense 16-bit tensor cores, FLOP/s
    memory_bytes_s: float
    memory_bytes: float
    multiprocessors: int
    inside_bytes_s: float  # to the other GPUs of a node, each way, nominal
    fp8_speed: float = 1.0  # of 8-bit tensor cores over those of 16 bits; 1: none
    matmul_share: float = MATMUL_SHARE  # of the peak, in full waves
    memory_share: float = MEMORY_SHARE  # of the memory's rate
    start_s: float = 4e-6  # from one kernel's end to the next one's full speed
    attention: AttentionKernel | None = None  # fused; None: as other products
    fused_attention: bool = True  # whether training on it is usually with it
    dispatch_s: float = 40e-6  # of the host for a kernel, which the GPU waits for if
    # it is faster; fitted to the models with experts on H100


def _read(row: Mapping[str, str]) -> Gpu:
    return Gpu(
        name=row["gpu"],
        peak_flops=float(row["peak_tflops"]) * 1e12,
        memory_bytes_s=float(row["memory_gbs"]) * 1e9,
        memory_bytes=float(row["memory_gb"]) * 1e9,
        multiprocessors=int(row["multiprocessors"]),
        inside_bytes_s=float(row["inside_gbs"]) * 1e9,
        fp8_speed=float(row["fp8_speed"]),
        attention=ATTENTION.get(row["attention"]),
        fused_attention=row["fused_attention"] == "1",
    )


GPUS = {row["gpu"]: _read(row) for row in published("gpus")}
"""By name."""

A100, H100 = GPUS["A100"], GPUS["H100"]
