"""Output, warnings and merge of a recording, common to both recorders."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from moetraffic.errors import CaptureError
from moetraffic.trace.merge.merging import Merged, merge_into
from moetraffic.trace.segments.store import prepare

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

log = logging.getLogger("moetraffic")

PATIENCE = timedelta(seconds=30)
"""Maximum time a rank waits for a decision of rank 0."""


class Recording:
    """Base class of the recorders: path of the trace, warnings and early end.

    Parameters
    ----------
    path
        The trace to write.
    force
        Overwrite ``path`` and remaining files of an earlier capture.
    """

    def __init__(self, path: str | Path, *, force: bool) -> None:
        self.path = Path(path)
        self.iteration = 0
        self.warnings: list[str] = []
        self._force = force
        self._ended = ""  # what ended the capture early

    def end_early(self, why: str) -> None:
        """Record the reason for an early end of the capture in the trace.

        Parameters
        ----------
        why
            Completes the sentence "rank 2 was ...": "interrupted by SIGINT".
        """
        self._ended = self._ended or " ".join(why.split())[:200]

    def _merge(self, folder: Path) -> Merged:
        """Merge all segments of a folder, and warn of missing data."""
        merged = merge_into(folder, self.path, force=self._force)
        for remark in (*merged.missing, *merged.remarks, *merged.contradictions):
            self._warn(remark)
        return merged

    def _warn(self, message: str) -> None:
        """Log a warning unless the same message was logged before."""
        if message not in self.warnings:
            self.warnings.append(message)
            log.warning("%s", message)


def ask_rank_0(
    store: Store | None,
    rank: int,
    key: str,
    decide: Callable[[], str],
    *,
    otherwise: str,
) -> str:
    """Return on every rank what rank 0 decides; every rank must call this.

    Parameters
    ----------
    store
        A store that all ranks reach; None where no other rank exists.
    rank
        This rank.
    key
        Key of the decision in the store, used once.
    decide
        Called on rank 0, or without a store.
    otherwise
        The result if rank 0 does not answer within 30 s.
    """
    if store is None or rank == 0:
        decision = decide()
        if store is not None:
            store.set(key, decision)
        return decision
    try:
        store.wait([key], PATIENCE)
        return str(store.get(key).decode())
    except RuntimeError:
        return otherwise


def check_output(
    path: Path,
    store: Store | None = None,
    rank: int = 0,
    number: int = 0,
    *,
    force: bool,
) -> None:
    """Check on rank 0 that a capture can be written; every rank must call this.

    If each rank checked by itself, a rank that fails would leave the others waiting.

    Parameters
    ----------
    path
        Path of the trace.
    store, rank
        As in :func:`ask_rank_0`; rank 0 also removes old files.
    number
        Number of recorders created by this process; equal on all ranks.
    force
        Remove the files of an earlier capture.

    Raises
    ------
    CaptureError
        On all ranks, if the capture cannot be written.
    """

    def check() -> str:
        try:
            prepare(path, force=force, overwrite="give force=True")
        except CaptureError as error:
            return str(error)
        return ""

    # without an answer, rank 0 does not record: only this rank's own folder is checked
    failure = ask_rank_0(store, rank, f"moetraffic/claim/{number}", check, otherwise="")
    if failure:
        raise CaptureError(failure)
