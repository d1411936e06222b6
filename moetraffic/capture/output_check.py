"""Check on rank 0 that a capture can be written, and share the result.

A rank that refused by itself would leave the others to train, and to wait for it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from moetraffic.errors import CaptureError
from moetraffic.trace.segments.store import prepare

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PATIENCE = timedelta(seconds=30)
OVERWRITE = "give force=True"
FREE = "free"


def check_output(
    path: Path, store: Store | None, rank: int, number: int, *, force: bool
) -> None:
    """Check that a capture can be written; every rank must call this.

    Parameters
    ----------
    path
        The trace.
    store
        A store that all ranks reach; None where no other rank exists.
    rank
        This rank: rank 0 looks, and makes room.
    number
        How many recorders this process has made: the same on all ranks.
    force
        Remove what an earlier capture left.

    Raises
    ------
    CaptureError
        On all ranks alike.
    """
    key = f"moetraffic/claim/{number}"
    if rank == 0 or store is None:
        told = FREE
        try:
            prepare(path, force=force, overwrite=OVERWRITE)
        except CaptureError as error:
            told = str(error)
        if store is not None:
            store.set(key, told)
    else:
        try:
            store.wait([key], PATIENCE)
            told = store.get(key).decode()
        except RuntimeError:
            # rank 0 does not record, or not yet: this rank's own folder decides
            told = FREE
    if told != FREE:
        raise CaptureError(told)
