"""All-to-alls over plain sockets, as a control: no torch, no gloo, no replay.

A rank has a connection for each direction of each pair, so no direction waits for the
other.  What these take above the bound of the network is by TCP and the simulated
links alone.  Every rank runs ``python plain_sockets.py CELLS.npy`` with byte matrices
``[n, W, W]``; rank 0 prints the time of each, s, from the last rank's begin to the last
end (the clock of the machine is common to all namespaces).
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PORT = 9_000
CHUNK = 1 << 20


class Peers:
    """Connections of one rank: ``out`` to send on, ``inside`` to receive from."""

    def __init__(self, rank: int, world: int) -> None:
        others = [r for r in range(world) if r != rank]
        listener = socket.create_server(("", PORT))
        self.out = {other: _connected(other) for other in others}
        self.inside: dict[int, socket.socket] = {}
        for connection in self.out.values():
            connection.sendall(bytes([rank]))
        for _ in others:
            connection, _ = listener.accept()
            self.inside[connection.recv(1)[0]] = connection
        self.rank = rank

    def gather(self, row: Any) -> list[Any]:
        """Lines of all ranks on rank 0; every rank waits until all have come."""
        line = json.dumps(row).encode() + b"\n"
        if self.rank:
            self.out[0].sendall(line)
            return [_line(self.inside[0])]
        rows = [row, *(json.loads(_line(c)) for _, c in sorted(self.inside.items()))]
        for connection in self.out.values():
            connection.sendall(b"\n")
        return rows

    def exchange(self, sends: list[int], receives: list[int]) -> None:
        """Send and receive bytes to and from all others at once."""
        waiting = selectors.DefaultSelector()
        left: dict[socket.socket, int] = {}
        for peers, sizes, event in (
            (self.out, sends, selectors.EVENT_WRITE),
            (self.inside, receives, selectors.EVENT_READ),
        ):
            for other, connection in peers.items():
                if sizes[other]:
                    connection.setblocking(False)
                    waiting.register(connection, event)
                    left[connection] = sizes[other]
        given, taken = memoryview(bytes(CHUNK)), bytearray(CHUNK)
        while left:
            for key, event in waiting.select():
                connection: Any = key.fileobj
                most = min(left[connection], CHUNK)
                if event == selectors.EVENT_WRITE:
                    moved = connection.send(given[:most])
                else:
                    moved = connection.recv_into(taken, most)
                left[connection] -= moved
                if not left[connection]:
                    del left[connection]
                    waiting.unregister(connection)
                    connection.setblocking(True)


def _connected(other: int) -> socket.socket:
    until = time.monotonic() + 30
    while True:
        try:
            made = socket.create_connection((f"10.77.0.{other + 1}", PORT))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)  # the other has not begun to listen
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1)  # bytes of an exchange may follow
    return line


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    peers, spans = Peers(rank, world), []
    for cells in np.load(Path(sys.argv[1])).tolist():
        peers.gather(None)
        begin = time.monotonic()
        peers.exchange(cells[rank], [row[rank] for row in cells])
        spans.append((begin, time.monotonic()))
    every = np.array(peers.gather(spans)) if rank == 0 else peers.gather(spans)
    if rank == 0:
        last = np.asarray(every).max(axis=0)  # [n, 2]
        print(json.dumps((last[:, 1] - last[:, 0]).tolist()))


if __name__ == "__main__":
    main()
