"""GPUs for the time model: data sheets, and two shares that are fitted."""

from __future__ import annotations

from dataclasses import dataclass

MATMUL_SHARE, MEMORY_SHARE = 0.714, 0.722
"""Fitted to the even rows of table 1 of SC'21, on A100s; :mod:`moetraffic.studies` has
the fit, and its errors on tables that were not fitted."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU: its data sheet, and the two shares that are fitted."""

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
    dispatch_s: float = 41e-6  # of the host for a kernel, which the GPU waits for if
    # it is faster; fitted to the even rows of vTrain's single-node table


A100 = Gpu(
    name="A100",
    peak_flops=312e12,
    memory_bytes_s=2.039e12,
    memory_bytes=80e9,
    multiprocessors=108,
    inside_bytes_s=300e9,
)
"""A100 80 GB SXM: NVIDIA's data sheet."""

H100 = Gpu(
    name="H100",
    peak_flops=989e12,
    memory_bytes_s=3.35e12,
    memory_bytes=80e9,
    multiprocessors=132,
    inside_bytes_s=450e9,
    fp8_speed=2.0,
)
"""H100 SXM: NVIDIA's data sheet, without sparsity."""

GPUS = {
    gpu.name: gpu
    for gpu in (
        A100,
        H100,
        # V100 SXM2: NVIDIA's data sheet
        Gpu(
            name="V100",
            peak_flops=125e12,
            memory_bytes_s=900e9,
            memory_bytes=32e9,
            multiprocessors=80,
            inside_bytes_s=150e9,
        ),
        # RTX 3090: NVIDIA's GA102 white paper; fp16 with fp32 accumulation, PCIe 4
        Gpu(
            name="RTX3090",
            peak_flops=71e12,
            memory_bytes_s=936e9,
            memory_bytes=24e9,
            multiprocessors=82,
            inside_bytes_s=32e9,
        ),
        # H200 SXM: NVIDIA's data sheet
        Gpu(
            name="H200",
            peak_flops=989e12,
            memory_bytes_s=4.8e12,
            memory_bytes=141e9,
            multiprocessors=132,
            inside_bytes_s=450e9,
            fp8_speed=2.0,
        ),
        # B200 in a DGX: NVIDIA's data sheet
        Gpu(
            name="B200",
            peak_flops=2250e12,
            memory_bytes_s=8e12,
            memory_bytes=180e9,
            multiprocessors=148,
            inside_bytes_s=900e9,
            fp8_speed=2.0,
        ),
        # B200 of a GB200 NVL72: NVIDIA's data sheet
        Gpu(
            name="GB200",
            peak_flops=2500e12,
            memory_bytes_s=8e12,
            memory_bytes=186e9,
            multiprocessors=148,
            inside_bytes_s=900e9,
            fp8_speed=2.0,
        ),
        # MI300X: AMD's data sheet; seven links of 64 GB/s each way
        Gpu(
            name="MI300X",
            peak_flops=1307e12,
            memory_bytes_s=5.3e12,
            memory_bytes=192e9,
            multiprocessors=304,
            inside_bytes_s=448e9,
            fp8_speed=2.0,
        ),
    )
}
"""By name."""
