"""Measure clock offsets between ranks through torch.distributed's key-value store.

Processes on one kernel share its monotonic clock, so their offset is exactly zero.
Other ranks request the time of rank 0 through the store and use the fastest of several
round trips (Cristian's algorithm); the error is half the round-trip time.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.capture.hook.call_recording import now_ns
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
    key = f"moetraffic/clock/{moment}"
    own = identity() if own is None else own
    try:
        store.set(f"{key}/identity/{rank}", own or "?")
        if rank == 0:
            names = [_get(store, f"{key}/identity/{r}") for r in range(world)]
            _answer(store, key, [r for r in range(1, world) if names[r] != names[0]])
            return _offset(rank, now_ns(), 0, 0)
        if _get(store, f"{key}/identity/0") == own:
            return _offset(rank, now_ns(), 0, 0)
        return _ask(store, key, rank)
    except RuntimeError:  # DistError: a rank timed out, or the store is closed
        return np.zeros(0, CLOCK)


def _ask(store: Store, key: str, rank: int) -> npt.NDArray[Any]:
    trips = []
    for trip in range(ROUND_TRIPS):
        sent = now_ns()
        store.set(f"{key}/ask/{rank}/{trip}", "1")
        answer = int(_get(store, f"{key}/answer/{rank}/{trip}"))
        back = now_ns()
        # when the offset was measured; the clock may drift until the last trip
        middle = (sent + back) // 2
        trips.append(((back - sent + 1) // 2, answer - middle, middle))
    error, offset, at = min(trips)
    return _offset(rank, at, offset, error)


def _answer(store: Store, key: str, ranks: Iterable[int]) -> None:
    for rank in ranks:
        for trip in range(ROUND_TRIPS):
            _get(store, f"{key}/ask/{rank}/{trip}")
            store.set(f"{key}/answer/{rank}/{trip}", str(now_ns()))


def _get(store: Store, key: str) -> str:
    store.wait([key], TIMEOUT)
    raw: bytes = store.get(key)
    return raw.decode()


def _offset(rank: int, at: int, offset: int, error: int) -> npt.NDArray[Any]:
    return np.array([(rank, at, offset, error)], CLOCK)
