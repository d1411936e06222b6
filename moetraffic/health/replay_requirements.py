"""Check the requirements of a replay: rendezvous, ports, disk space and memory."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.launch.machine_resources import available_bytes
from moetraffic.trace import Trace

from .finding import Finding, State, finding
from .machine import disk_space

_check = partial(finding, "replay")
RANK_BYTES = 300_000_000
"""Resident memory, in bytes, of a process that has imported torch."""
AT_ONCE = 4096
CONNECT_S = 5.0


def before_replay(trace: Path, *, nproc: int | None, folder: Path) -> list[Finding]:
    """Check the requirements of replaying a trace file.

    ``nproc`` is the number of ranks to start on this host, None for that of the trace;
    the replayed trace will be written to ``folder``.
    """
    try:
        with Trace.open(trace) as opened:
            world = opened.meta.world
            largest = largest_bytes(opened)
            said = (
                f"{len(opened.occurrences)} operations of {world} ranks, "
                f"{len(opened.iterations)} iterations"
            )
            whole = opened.meta.complete
    except TraceError as error:
        return [_check("trace", State.STOP, str(error))]
    ranks = world if nproc is None else nproc
    return [
        _check(
            *("trace", State.OK if whole else State.NOTE),
            said + ("" if whole else ", of which some are missing"),
            "give --complete-missing peers or mean",
        ),
        _ranks(world, ranks),
        _rendezvous(),
        _ports(ranks),
        _memory(ranks, largest),
        # the same operations with other times: about the same size
        disk_space(folder, 2 * trace.stat().st_size, "replay", "disk"),
    ]


def largest_bytes(trace: Trace) -> int:
    """Compute the largest send plus receive bytes of a rank in any all-to-all."""
    most = 0
    calls = trace.occurrences
    for number in np.flatnonzero(trace.square & trace.has_bytes).tolist():
        known = (calls.site == number) & (calls.matrix >= 0)
        of = trace.complete(np.flatnonzero(known))
        # the sum of a rank's row and column is that of the transposed matrix, too
        of = of[np.unique(calls.matrix[of], return_index=True)[1]]
        for first in range(0, len(of), AT_ONCE):
            wire = trace.wire(of[first : first + AT_ONCE])  # [n, W, W]
            most = max(most, int((wire.sum(axis=2) + wire.sum(axis=1)).max()))
    return most


def _ranks(world: int, ranks: int) -> Finding:
    if ranks < 1:
        return _check("ranks", State.STOP, f"{ranks} ranks", "raise --nproc")
    if ranks == world:
        return _check("ranks", State.OK, f"{ranks}, as in the trace")
    way = f"--fold {ranks}" if ranks < world else f"--expand {ranks}"
    return _check(
        *("ranks", State.STOP),
        f"{ranks}, but the trace has {world}",
        f"give replay {way}, or change --nproc",
    )


def _rendezvous() -> Finding:
    """Check that the rendezvous address is reachable."""
    check = partial(_check, "rendezvous")
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host and not port:
        return check(State.OK, "a file: the ranks of this host need no address")
    where = f"{host or '(no MASTER_ADDR)'}:{port or '(no MASTER_PORT)'}"
    if not host or not port or not port.isdecimal() or not 0 < int(port) < 65_536:
        return check(
            State.STOP,
            f"ranks cannot meet at {where}",
            "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there",
        )
    try:
        with socket.create_connection((host, int(port)), CONNECT_S):
            said = f"{where} answers: rank 0, or another program, listens there"
    except ConnectionRefusedError:
        said = f"{where} can be reached, and nothing listens there yet"
    except OSError as error:
        return check(
            State.STOP,
            f"{where} cannot be reached ({error})",
            "let the ports between the hosts through, or change MASTER_ADDR",
        )
    return check(State.OK, said)


def _ports(ranks: int) -> Finding:
    """Check that every rank gets a free port to listen on."""
    held: list[socket.socket] = []
    try:
        for _ in range(ranks):
            one = socket.socket()
            held.append(one)
            one.bind(("", 0))
    except OSError as error:
        return _check(
            *("ports", State.STOP),
            f"only {len(held) - 1} of {ranks} ports are free ({error.strerror})",
            "end what holds them, or raise ulimit -n",
        )
    finally:
        for one in held:
            one.close()
    return _check("ports", State.OK, f"{ranks} are free at once")


def _memory(ranks: int, largest: int) -> Finding:
    needed = ranks * (RANK_BYTES + largest)
    available = available_bytes()
    said = f"about {needed / 1e9:.1f} GB are needed"
    if available is None:
        return _check("memory", State.OK, said)
    enough = needed <= available
    return _check(
        *("memory", State.OK if enough else State.STOP),
        f"{said}, {available / 1e9:.1f} GB are available",
        "start fewer ranks with --fold, or send less with --bytes x0.1",
    )
