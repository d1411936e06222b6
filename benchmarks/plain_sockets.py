"""All-to-alls over plain sockets, as a control: no torch, no gloo, no replay.

A rank has a connection for each direction of each pair, so no direction waits for the
other.  Every rank runs ``python plain_sockets.py CELLS.npy`` with byte matrices
``[n, W, W]``; rank 0 prints the time of each, s, from the last rank's begin to the last
end (the clock of the machine is common to all namespaces).

All ranks begin an all-to-all together: what these take above the bound of the network
is by TCP and the simulated links alone.  ``--as-gloo`` does as gloo and the replay do:
a rank begins when its own previous one has ended, and sends to another only after that
one has announced, by a byte, that it receives.
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
READY = b"r"


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

    def exchange(
        self, sends: list[int], receives: list[int], *, announced: bool
    ) -> None:
        """Send and receive bytes to and from all others at once."""
        waiting = selectors.DefaultSelector()
        left: dict[socket.socket, int] = {}
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        for peers, sizes, event, next_event in (
            (self.inside, receives, read, read),
            (self.out, sends, read if announced else write, write),
        ):
            for other, connection in peers.items():
                if not sizes[other]:
                    continue
                if announced and next_event == read:
                    connection.sendall(READY)
                connection.setblocking(False)
                waiting.register(connection, event, next_event)
                left[connection] = sizes[other]
        given, taken = memoryview(bytes(CHUNK)), bytearray(CHUNK)
        while left:
            for key, event in waiting.select():
                connection: Any = key.fileobj
                most = min(left[connection], CHUNK)
                if event != key.data:  # the receiver's announcement
                    connection.recv(len(READY))
                    waiting.modify(connection, key.data, key.data)
                    continue
                if event == write:
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
    as_gloo = "--as-gloo" in sys.argv[2:]
    peers, spans = Peers(rank, world), []
    peers.gather(None)
    for cells in np.load(Path(sys.argv[1])).tolist():
        if not as_gloo:
            peers.gather(None)
        begin = time.monotonic()
        received = [row[rank] for row in cells]
        peers.exchange(cells[rank], received, announced=as_gloo)
        spans.append((begin, time.monotonic()))
    every = peers.gather(spans)
    if rank == 0:
        last = np.asarray(every).max(axis=0)  # [n, 2]
        print(json.dumps((last[:, 1] - last[:, 0]).tolist()))


if __name__ == "__main__":
    main()
