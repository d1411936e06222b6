"""Measure clock offsets between hosts, of ranks that share a key-value store.

Processes on one kernel share its monotonic clock, so their offset is exactly zero.  Of
each other host one rank asks rank 0 for its time over a connection of its own, all
hosts at once, and uses the fastest of many round trips (Cristian's algorithm); the
error is half the round-trip time.
"""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.capture.hook.calls import now_ns
from moetraffic.trace.model import CLOCK

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

ROUND_TRIPS = 64
TIMEOUT_S = 10.0
"""Longest wait, in s, for any answer of another rank."""

NOW = struct.Struct("<q")


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
) -> tuple[npt.NDArray[Any], bool]:
    """Measure this rank's clock offset from rank 0; every rank must call this.

    All ranks reach the store; ``moment`` names this measurement, the same on all ranks
    and used once, and ``own`` identifies this rank's clock, as :func:`identity` does.
    Returns ``[n]`` CLOCK, this rank's offset, or no row if it could not be measured;
    and whether all ranks share one clock.
    """
    prefix = f"moetraffic/clock/{moment}/"

    def get(name: str) -> str:
        until_s, pause_s = time.monotonic() + TIMEOUT_S, 0.001
        while not store.check([prefix + name]):
            if time.monotonic() > until_s:
                raise TimeoutError(name)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return str(store.get(prefix + name).decode())

    try:
        store.set(f"{prefix}identity/{rank}", identity() if own is None else own)
        if rank == 0:
            names = [get(f"identity/{other}") for other in range(world)]
            asking = [names.index(name) for name in names]  # the first of each host
            with _TimeServer(("", 0), _Answer) as server:
                threading.Thread(target=server.serve_forever, args=(0.01,)).start()
                address = *_own_address(store), server.server_address[1]
                store.set(f"{prefix}plan", json.dumps([*address, asking]))
                try:
                    for other in set(asking) - {0}:
                        get(f"offset/{other}")
                finally:
                    server.shutdown()
            return np.array([(0, now_ns(), 0, 0)], CLOCK), not any(asking)
        host, is_stores, port, asking = json.loads(get("plan"))
        first = asking[rank]
        if first == 0:
            return np.array([(rank, now_ns(), 0, 0)], CLOCK), not any(asking)
        if first == rank:
            place = (_store_host(store) if is_stores else host, port)
            try:
                answer = json.dumps(ask(place, now_ns))
            except OSError:
                answer = "[]"
            store.set(f"{prefix}offset/{rank}", answer)
        values = json.loads(get(f"offset/{first}"))
    except (RuntimeError, TimeoutError):  # another rank is late, or the store is closed
        return np.zeros(0, CLOCK), False
    return np.array([(rank, *values)] if values else [], CLOCK), False


def ask(address: tuple[str, int], clock: Callable[[], int]) -> tuple[int, int, int]:
    """Ask a time server; return when by the own clock, offset and its error, in ns."""
    trips = []
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUND_TRIPS):
            sent = clock()
            connection.sendall(b"?")
            data = connection.recv(NOW.size, socket.MSG_WAITALL)
            back = clock()
            if len(data) < NOW.size:
                raise ConnectionError("the time server has ended")
            middle = (sent + back) // 2
            trips.append(((back - sent + 1) // 2, NOW.unpack(data)[0] - middle, middle))
    error, offset, measured = min(trips)
    return measured, offset, error


class _Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while self.request.recv(1):
            self.request.sendall(NOW.pack(now_ns()))


class _TimeServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024


def _store_host(store: Any) -> str:
    """Return the host that serves a store; this one where it does not say."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", socket.gethostname()))


def _own_address(store: Any) -> tuple[str, bool]:
    """Return the address of this host on the way to the store, and whether it is here.

    The server of the store has many names, and the other ranks know one of them.
    """
    try:
        target = socket.gethostbyname(_store_host(store))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # sends nothing
            address = str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname(), False
    return address, address == target or target.startswith("127.")
