"""Work on a CUDA stream that lasts as long as a gap between operations.

The host queues it and goes on: a gap of one stream delays no other stream, and the
launch overhead of the host is hidden behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

_SIDES = (4096, 2048, 1024)  # some 190, 25 and 5 us on an H200
_REPETITIONS = 16
_WEIGHT = 0.3  # of the latest measurement of products
_CYCLES = 4_000_000  # some 2 ms: long against the resolution of events, 0.5 us


class Spin:
    """A kernel of one thread that polls the clock of the device, calibrated first."""

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            _sleep(_CYCLES)  # loads the kernel, raises clocks
            self.cycles_per_ns = _CYCLES / _duration_ns(lambda: _sleep(_CYCLES))

    def fill(self, gap_ns: float) -> None:
        """Queue work of this duration, in ns, on the current stream."""
        cycles = round(gap_ns * self.cycles_per_ns)
        if cycles > 0:
            _sleep(cycles)


class Gemm:
    """Matrix products in bfloat16, whose durations are measured before and meanwhile.

    Large ones leave the host time to queue; what is left of a gap after the smallest is
    spent polling the clock.  Elements are random, as products of constants take less
    power, and so less time.  Under a load that lasts a GPU lowers its clocks: products
    of a gap in progress are timed, and later gaps have as many as fit.
    """

    def __init__(self, device: torch.device) -> None:
        self._spin = Spin(device)
        self._slower = 1.0  # products than at the start, a factor
        self._timed: deque[tuple[Any, Any, float]] = deque()
        with torch.cuda.device(device):
            made = [
                torch.empty(
                    _SIDES[0] ** 2, device=device, dtype=torch.bfloat16
                ).normal_()
                for _ in range(3)
            ]
            self._matrices = {
                side: [m[: side * side].view(side, side) for m in made]
                for side in _SIDES
            }
            self.product_ns = {side: self._measure(side) for side in _SIDES}

    def fill(self, gap_ns: float) -> None:
        """Queue products of this duration, in ns, on the current stream."""
        while self._timed and self._timed[0][1].query():
            begin, end, nominal_ns = self._timed.popleft()
            slower = float(begin.elapsed_time(end)) * 1e6 / nominal_ns
            self._slower += _WEIGHT * (slower - self._slower)
        begin, left_ns = event(), gap_ns
        begin.record()
        for side, product_ns in self.product_ns.items():
            times = int(left_ns // (product_ns * self._slower))
            self._multiply(side, times)
            left_ns -= times * product_ns * self._slower
        if left_ns < gap_ns / 2:
            end = event()
            end.record()
            self._timed.append((begin, end, (gap_ns - left_ns) / self._slower))
        self._spin.fill(left_ns)

    def _measure(self, side: int) -> float:
        self._multiply(side, _REPETITIONS)  # loads libraries, raises clocks
        took_ns = _duration_ns(lambda: self._multiply(side, _REPETITIONS))
        return max(1.0, took_ns / _REPETITIONS)

    def _multiply(self, side: int, times: int) -> None:
        a, b, out = self._matrices[side]
        for _ in range(times):
            torch.mm(a, b, out=out)


def event(*, timed: bool = True, **more: bool) -> Any:
    """Create an event of the device."""
    make: Callable[..., Any] = torch.cuda.Event
    return make(enable_timing=timed, **more)


def _sleep(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _duration_ns(work: Callable[[], None]) -> float:
    """Measure work on the current stream, in ns, without the time of its launches."""
    begin, end = event(), event()
    _sleep(_CYCLES)  # the work is queued before the device reaches it
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6
