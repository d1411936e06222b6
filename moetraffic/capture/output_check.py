"""Check on rank 0 that a capture can be written, and send the result to all ranks.

If each rank checked by itself, a rank that fails would leave the others waiting for it.
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
        Path of the trace.
    store
        A store that all ranks reach; None where no other rank exists.
    rank
        This rank; rank 0 performs the check and removes old files.
    number
        Number of recorders created by this process; equal on all ranks.
    force
        Remove the files of an earlier capture.

    Raises
    ------
    CaptureError
        On all ranks, if the capture cannot be written.
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
            # rank 0 does not record, or not yet: check this rank's own folder only
            told = FREE
    if told != FREE:
        raise CaptureError(told)
