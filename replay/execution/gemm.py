"""A gap filled with what it stands for: a matrix product on the GPU, as long."""

from __future__ import annotations

from collections.abc import Callable

import torch

_SIDE = 2048  # some 20 us of an H100, 100 us of a V100: gaps are many of these
_TRIED = 32


class Gemm:
    """Products of square matrices in bfloat16, timed once when it is made.

    Parameters
    ----------
    device
        A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        make = {"device": device, "dtype": torch.bfloat16}
        self._a = torch.ones(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
        self._b = torch.ones(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
        self._out = torch.empty(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
        self._multiply(_TRIED)  # libraries are loaded, clocks rise
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        self._multiply(_TRIED)
        end.record()
        end.synchronize()
        self.one_ns = max(1.0, begin.elapsed_time(end) * 1e6 / _TRIED)

    def fill(self, gap_ns: int) -> None:
        """Queue products on the current stream that take this long together."""
        self._multiply(round(gap_ns / self.one_ns))

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._a, self._b, out=self._out)
