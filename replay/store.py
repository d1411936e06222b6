"""Store of the launcher, which all ranks of a replay share."""

from __future__ import annotations

import os
import re
import threading
from datetime import timedelta
from urllib.parse import urlsplit

from torch._C._distributed_c10d import FileStore, Store, TCPStore

from moetraffic.errors import LayoutError
from moetraffic.launch.board import Cause
from moetraffic.launch.environment import RankEnvironment, rendezvous

from .failure import RankError, first_line

PLACE = "the rendezvous"


def served_by_agent() -> bool:
    """Whether torchrun's agent serves the store; otherwise it ends with rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def _address() -> tuple[str, int]:
    """Return host and port of the rendezvous; port 0 where rank 0 chooses one."""
    place = urlsplit(rendezvous())
    host, port = place.hostname, place.port
    if place.scheme == "file":
        return "127.0.0.1", 0
    if place.scheme == "env":
        host, text = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        port = int(text) if text.isdecimal() and int(text) < 1 << 16 else None
    if host is None or port is None:
        raise LayoutError(
            "MASTER_PORT is a port, 1 to 65535, but is "
            f"{os.environ.get('MASTER_PORT')!r}: set it to a free port of rank 0"
        )
    return host, port


def connected(rank_env: RankEnvironment, patience_s: float, start_s: float) -> Store:
    """Connect to the store of the launcher within a time.

    Rank 0 or torchrun's agent serves it.  torch waits without limit for the answer of
    another program that listens at the address, hence a thread does.
    """
    found: list[Store | Exception] = []
    host, port = _address()

    def connect() -> None:
        try:
            found.append(_store(rank_env, host, port, timedelta(seconds=patience_s)))
        except RuntimeError as error:  # reported below
            found.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(patience_s + 0.2)  # torch's own error says more
    if found and isinstance(found[0], Store):
        return found[0]
    serves = rank_env.rank == 0 and not served_by_agent()
    reason = "no answer: rank 0 is not there yet, or another program listens there"
    if found and isinstance(found[0], Exception):
        reason = first_line(found[0])
        if serves and re.search("EADDRINUSE|already in use", str(found[0])):
            raise RankError(
                f"cannot listen on {host}:{port}, which is in use by another program: "
                "set MASTER_PORT to a free port for all ranks",
                rank=0,
                operation=PLACE,
            )
    raise RankError(
        f"cannot reach rank 0 at {host}:{port} within {start_s:g} s ({reason}); other "
        "missing ranks are reported only once rank 0 is reached: start rank 0, or set "
        "MASTER_ADDR and MASTER_PORT to its host and a free port of it",
        rank=rank_env.rank,
        operation=PLACE,
        cause=Cause.OWN if serves else Cause.PEER,
        reporter=rank_env.rank,
    )


def _store(
    rank_env: RankEnvironment, host: str, port: int, patience: timedelta
) -> Store:
    serves = rank_env.rank == 0 and not served_by_agent()
    if port == 0:  # one host: the port is in a file
        file = FileStore(f"{urlsplit(rendezvous()).path}-port", rank_env.world)
        file.set_timeout(patience)
        port = 0 if serves else int(file.get("port"))
    store = TCPStore(
        host,
        port,
        rank_env.world,
        serves,
        patience,
        wait_for_workers=False,
        multi_tenant=True,  # the groups of torch.distributed share its server
    )
    if serves and urlsplit(rendezvous()).scheme == "file":
        file.set("port", str(store.port))
    return store
