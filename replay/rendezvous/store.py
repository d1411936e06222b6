"""Key-value store shared by the ranks of a replay.

It uses the launcher's rendezvous address, like the store of the backend, but exists
before any group is made and after groups have failed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from torch._C._distributed_c10d import FileStore, TCPStore
from torch._C._distributed_c10d import Store as AnyStore

from moetraffic.errors import LayoutError
from moetraffic.launch import RankEnvironment, rendezvous
from moetraffic.replay.failure import RankError, first_line

PLACE = "the rendezvous"

_PREFIX = "moetraffic/replay"
_MARGIN_S = 0.2  # for torch's own timeout, whose error says more
_POLL_S = 0.005, 0.2  # interval between two reads: at first, at most


class Store:
    """Client of one rank to the key-value store shared by all ranks.

    It is awaited for ``patience_s``; messages name the users' ``start_timeout_s``.

    Raises
    ------
    RankError
        If the store cannot be reached; from every method also if it is lost.
    """

    def __init__(
        self, rank_env: RankEnvironment, patience_s: float, start_timeout_s: float
    ) -> None:
        self._rank_env = rank_env
        self._patience_s = patience_s
        self.client = _store(rank_env, patience_s, start_timeout_s)

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Store a value under a key, as JSON."""
        with self._reached():
            self.client.set(f"{_PREFIX}/{key}", json.dumps(value).encode().hex())

    def expect(self, key: str, within_s: float | None = None) -> dict[str, Any] | None:
        """Wait for the value of a key and return it; None after the timeout."""
        if not self.wait(key, self._patience_s if within_s is None else within_s):
            return None
        with self._reached():
            text = bytes.fromhex(self.client.get(f"{_PREFIX}/{key}").decode())
        found: dict[str, Any] = json.loads(text)
        return found

    def wait(self, key: str, within_s: float) -> bool:
        """Wait for a key; return whether it was stored in time.

        Unlike the wait of torch's stores, it can be interrupted.
        """
        until = time.monotonic() + within_s
        pause, longest = _POLL_S
        while True:
            with self._reached():
                if self.client.check([f"{_PREFIX}/{key}"]):
                    return True
            if time.monotonic() + pause > until:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, longest)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"is lost, and with it the rendezvous: {first_line(error)}",
                rank=0,
                operation=PLACE,
                cause="peer",
                reporter=self._rank_env.rank,
            ) from error


def served_by_agent() -> bool:
    """Whether torchrun's agent serves the store; otherwise it ends with rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def where() -> str:
    """Return the address of the rendezvous, as HOST:PORT for messages."""
    return ":".join(map(str, _address()))


def _store(
    rank_env: RankEnvironment, patience_s: float, start_timeout_s: float
) -> AnyStore:
    """Connect to the store at the launcher's rendezvous address within a time.

    Rank 0 or the launcher serves it.  torch waits without limit for the answer of
    another program that listens at the address, hence a thread does.
    """
    found: list[AnyStore | Exception] = []

    def connect() -> None:
        try:
            found.append(_connected(rank_env, patience_s, start_timeout_s))
        except Exception as error:  # raised again below
            found.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(patience_s + _MARGIN_S)
    if not found:
        raise _unanswered(rank_env, start_timeout_s)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _unanswered(rank_env: RankEnvironment, start_timeout_s: float) -> RankError:
    """Build the error of an address at which no store has answered in time."""
    reason = ""
    try:
        socket.create_connection(_address(), timeout=_MARGIN_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        return _unreachable(rank_env, start_timeout_s, reason)
    return RankError(
        f"has no answer from {where()} within {start_timeout_s:g} s: another program "
        "listens there, or rank 0's host is overloaded; set MASTER_PORT to a free one "
        "for all ranks, or raise --start-timeout",
        rank=rank_env.rank,
        operation=PLACE,
    )


def _unreachable(
    rank_env: RankEnvironment, start_timeout_s: float, reason: str
) -> RankError:
    return RankError(
        f"cannot reach rank 0 at {where()} within {start_timeout_s:g} s ({reason}); "
        "other missing ranks are reported only once rank 0 is reached: start rank 0, "
        "or set MASTER_ADDR and MASTER_PORT to its host and a free port of it",
        rank=rank_env.rank,
        operation=PLACE,
        cause="own" if rank_env.rank == 0 and not served_by_agent() else "peer",
        reporter=rank_env.rank,
    )


def _connected(
    rank_env: RankEnvironment, patience_s: float, start_timeout_s: float
) -> AnyStore:
    place = urlsplit(rendezvous())
    if place.scheme == "file":
        # torch removes a file after its last user: the groups have their own
        store = FileStore(f"{place.path}-rendezvous", rank_env.world)
        store.set_timeout(timedelta(seconds=patience_s))
        return store
    host, port = _address()
    serves = rank_env.rank == 0 and not served_by_agent()
    try:
        return TCPStore(
            host,
            port,
            rank_env.world,
            serves,
            timedelta(seconds=patience_s),
            wait_for_workers=False,
            multi_tenant=True,  # the groups of torch.distributed share its server
        )
    except RuntimeError as error:
        said = str(error)
        if serves and re.search("EADDRINUSE|already in use", said):
            raise RankError(
                f"cannot listen on port {port} of {host}, which is in use by another "
                "program: set MASTER_PORT to a free one for all ranks",
                rank=rank_env.rank,
                operation=PLACE,
            ) from error
        raise _unreachable(rank_env, start_timeout_s, first_line(error)) from error


def _address() -> tuple[str, int]:
    """Return host and port of the rendezvous."""
    place = urlsplit(rendezvous())
    host, port = place.hostname, place.port
    if place.scheme == "env":
        host, text = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        port = int(text) if text.isdecimal() and int(text) < 1 << 16 else None
    if host is None or port is None:
        raise LayoutError(
            "MASTER_PORT is a port, 1 to 65535, but is "
            f"{os.environ.get('MASTER_PORT')!r}: set it to a free port of rank 0"
        )
    return host, port
