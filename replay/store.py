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


def where() -> str:
    """Return the address of the rendezvous, as HOST:PORT for messages."""
    return ":".join(map(str, _address()))


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


def connected(rank_env: RankEnvironment, patience_s: float, start_s: float) -> Store:
    """Connect to the store of the launcher within a time.

    Rank 0 or torchrun's agent serves it.  torch waits without limit for the answer of
    another program that listens at the address, hence a thread does.
    """
    found: list[Store | Exception] = []

    def connect() -> None:
        try:
            found.append(_store(rank_env, timedelta(seconds=patience_s)))
        except Exception as error:  # raised again below
            found.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(patience_s + 0.2)  # torch's own error says more
    if found and not isinstance(found[0], RuntimeError):
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]
    own_fault = rank_env.rank == 0 and not served_by_agent()
    reason = "no answer: rank 0 is not there yet, or another program listens there"
    if found and isinstance(found[0], Exception):
        reason = first_line(found[0])
        if own_fault and re.search("EADDRINUSE|already in use", str(found[0])):
            raise RankError(
                f"cannot listen on {where()}, which is in use by another program: set "
                "MASTER_PORT to a free port for all ranks",
                rank=0,
                operation=PLACE,
            )
    raise RankError(
        f"cannot reach rank 0 at {where()} within {start_s:g} s ({reason}); other "
        "missing ranks are reported only once rank 0 is reached: start rank 0, or set "
        "MASTER_ADDR and MASTER_PORT to its host and a free port of it",
        rank=rank_env.rank,
        operation=PLACE,
        cause=Cause.OWN if own_fault else Cause.PEER,
        reporter=rank_env.rank,
    )


def _store(rank_env: RankEnvironment, patience: timedelta) -> Store:
    place = urlsplit(rendezvous())
    serves = rank_env.rank == 0 and not served_by_agent()
    if place.scheme == "file":  # one host: rank 0 chooses a port
        file = FileStore(f"{place.path}-port", rank_env.world)
        file.set_timeout(patience)
        host, port = "127.0.0.1", 0 if serves else int(file.get("port"))
    else:
        host, port = _address()
    store = TCPStore(
        host,
        port,
        rank_env.world,
        serves,
        patience,
        wait_for_workers=False,
        multi_tenant=True,  # the groups of torch.distributed share its server
    )
    if serves and place.scheme == "file":
        file.set("port", str(store.port))
    return store
