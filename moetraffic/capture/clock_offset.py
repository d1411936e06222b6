"""Measure clock offsets between ranks through torch.distributed's key-value store.

Processes on one kernel share its monotonic clock, so their offset is exactly zero.
Other ranks request the time of rank 0 through the store and use the fastest of several
round trips (Cristian's algorithm); the error is half the round-trip time.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.capture.hook.calls import now_ns
from moetraffic.trace.model import CLOCK

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

ROUND_TRIPS = 16
TIMEOUT = timedelta(seconds=10)


def identity() -> str:
    """Return an identifier of this process's clock from boot id and time namespace."""
    parts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/timens_offsets"):
        try:
            parts.append(" ".join(Path(path).read_text().split()))
        except OSError:
            parts.append("")
    return "|".join(parts)


def measure_offset(
    store: Store, rank: int, world: int, moment: str, own: str | None = None
) -> npt.NDArray[Any]:
    """Measure this rank's clock offset from rank 0; every rank must call this.

    All ranks reach the store; ``moment`` names this measurement, the same on all ranks
    and used once, and ``own`` identifies this rank's clock, as :func:`identity` does.
    Returns ``[n]`` CLOCK: this rank's offset, or no row if rank 0 did not answer.
    """
    own = identity() if own is None else own

    def put(name: str, value: object) -> None:
        store.set(f"moetraffic/clock/{moment}/{name}", str(value))

    def get(name: str) -> str:
        key = f"moetraffic/clock/{moment}/{name}"
        store.wait([key], TIMEOUT)
        return str(store.get(key).decode())

    trips = []  # half the round-trip time, offset, and when it was measured
    try:
        put(f"identity/{rank}", own)
        if rank == 0:
            names = [get(f"identity/{r}") for r in range(world)]
            for other in (r for r in range(world) if names[r] != own):
                for trip in range(ROUND_TRIPS):
                    get(f"ask/{other}/{trip}")
                    put(f"answer/{other}/{trip}", now_ns())
        elif get("identity/0") != own:
            for trip in range(ROUND_TRIPS):
                sent = now_ns()
                put(f"ask/{rank}/{trip}", 1)
                answer = int(get(f"answer/{rank}/{trip}"))
                back = now_ns()
                middle = (sent + back) // 2
                trips.append(((back - sent + 1) // 2, answer - middle, middle))
    except RuntimeError:  # DistError: a rank timed out, or the store is closed
        return np.zeros(0, CLOCK)
    error, offset, measured = min(trips, default=(0, 0, now_ns()))
    return np.array([(rank, measured, offset, error)], CLOCK)
