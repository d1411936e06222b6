"""Fill gaps on a GPU with matrix products of the same duration."""

from __future__ import annotations

from collections.abc import Callable

import torch

_SIDE = 2048  # some 20 us on an H100, 100 us on a V100: gaps are many of these
_REPETITIONS = 32


class Gemm:
    """Square bfloat16 matrix products whose duration is measured at creation.

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
        self._multiply(_REPETITIONS)  # loads libraries, raises clocks
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        self._multiply(_REPETITIONS)
        end.record()
        end.synchronize()
        self.product_ns = max(1.0, begin.elapsed_time(end) * 1e6 / _REPETITIONS)

    def fill(self, gap_ns: int) -> None:
        """Queue matrix products of a given total duration on the current stream."""
        self._multiply(round(gap_ns / self.product_ns))

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._a, self._b, out=self._out)
