"""Work on a CUDA stream that lasts as long as a gap between operations.

The host queues it and goes on: a gap of one stream delays no other stream, and the
launch overhead of the host is hidden behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from .pace import Gaps

_SIDE = 2048  # some 20 us on an H100, 100 us on a V100: gaps are many of these
_REPETITIONS = 32
_CYCLES = 4_000_000  # some 2 ms: long against the resolution of events, 0.5 us


class DeviceGap(Protocol):
    """Work of a chosen duration on the current stream."""

    def fill(self, gap_ns: float) -> None:
        """Queue work of this duration, in ns."""
        ...


def device_gap(gaps: Gaps, device: torch.device) -> DeviceGap | None:
    """Create the work that fills gaps; None where the host waits instead."""
    makers: dict[Gaps, Callable[[torch.device], DeviceGap]] = {
        Gaps.SPIN: Spin,
        Gaps.GEMM: Gemm,
    }
    make = makers.get(gaps)
    return None if make is None else make(device)


class Spin:
    """A kernel of one thread that polls the clock of the device, calibrated first."""

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            _spin(_CYCLES)  # loads the kernel, raises clocks
            self.cycles_per_ns = _CYCLES / _duration_ns(lambda: _spin(_CYCLES))

    def fill(self, gap_ns: float) -> None:
        """Queue the kernel on the current stream; see :meth:`DeviceGap.fill`."""
        cycles = round(gap_ns * self.cycles_per_ns)
        if cycles > 0:
            _spin(cycles)


class Gemm:
    """Matrix products in bfloat16, whose duration is measured first."""

    def __init__(self, device: torch.device) -> None:
        make = {"device": device, "dtype": torch.bfloat16}
        with torch.cuda.device(device):
            self._a = torch.ones(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
            self._b = torch.ones(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
            self._out = torch.empty(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
            self._multiply(_REPETITIONS)  # loads libraries, raises clocks
            took_ns = _duration_ns(lambda: self._multiply(_REPETITIONS))
        self.product_ns = max(1.0, took_ns / _REPETITIONS)

    def fill(self, gap_ns: float) -> None:
        """Queue products on the current stream; see :meth:`DeviceGap.fill`."""
        self._multiply(round(gap_ns / self.product_ns))

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._a, self._b, out=self._out)


def _spin(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _duration_ns(work: Callable[[], None]) -> float:
    """Measure work on the current stream, in ns."""
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    begin, end = make(enable_timing=True), make(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6
