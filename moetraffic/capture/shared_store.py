"""Key-value store of one recorder, in which rank 0 decides for all ranks.

The store of an elastic launcher outlives the ranks that it restarts: a rank of the new
life would read the answers to the old one.  So rank 0 chooses a token, under which all
keys of the recorder lie.  The key of the token itself contains the number of restarts,
and the last rank that reads it removes it, as ranks also begin anew, without a restart
that counts, when the number of hosts changes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

PATIENCE = timedelta(seconds=30)
"""Maximum time a rank waits for a decision of rank 0."""


class SharedStore:
    """Store that the recorders of all ranks share, and no earlier recorder has used.

    Every rank must create it.  It is None where no other rank exists, and where rank 0
    does not answer within 30 s.  ``name`` is that of the recorder: the same on all
    ranks, and of no other one of the process.
    """

    def __init__(self, name: str) -> None:
        self.rank = 0
        self.store: Store | None = None
        # the ranks of a fake group do not exist
        if not dist.is_initialized() or dist.get_backend() == "fake":
            return
        if (world := dist.get_world_size()) > 1:
            self.rank = dist.get_rank()
            default = dist.distributed_c10d._get_default_store()
            self.store = fresh(default, self.rank, world, name)

    def ask_rank_0(
        self, key: str, decide: Callable[[], str], otherwise: str = ""
    ) -> str:
        """Return on every rank what rank 0 decides; every rank must call this.

        ``otherwise`` is returned if rank 0 does not answer.  A ``key`` is used once.
        """
        if self.rank:
            return read(self.store, key) or otherwise
        decision = decide()
        if self.store is not None:
            self.store.set(key, decision)
        return decision


def fresh(store: Store, rank: int, world: int, name: str) -> Store | None:
    """Return the part of a store of one life of the ranks; None without rank 0."""
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"moetraffic/{name}/{life}"
    token = read(store, key) if rank else secrets.token_hex(8)
    if not rank:
        store.set(key, token)
    if not token:
        return None
    own = PrefixStore(f"moetraffic/{token}", store)
    with contextlib.suppress(RuntimeError):  # a store that cannot delete keys
        if own.add("readers", 1) == world:
            store.delete_key(key)
    return own


def read(store: Store | None, key: str) -> str:
    """Wait for the value of a key; "" if there is none."""
    try:
        if store is not None:
            store.wait([key], PATIENCE)
            return str(store.get(key).decode())
    except RuntimeError:  # DistError: rank 0 timed out, or the store is closed
        pass
    return ""
