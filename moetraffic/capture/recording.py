"""Output, metadata, warnings and merge of a recording, common to both recorders."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from moetraffic import __version__
from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.patterns import Workload
from moetraffic.trace.choices import NO_SAMPLE
from moetraffic.trace.merge.merging import Merged, merge_into
from moetraffic.trace.model import Meta
from moetraffic.trace.segments.segment import rank_folder
from moetraffic.trace.segments.store import CLOSED, prepare

from .input_validation import check_token_sample
from .records.recovery import recover

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

log = logging.getLogger("moetraffic")

WINDOW_STEPS = 32
"""Default number of steps that a killed rank may lose."""
PATIENCE = timedelta(seconds=30)
"""Maximum time a rank waits for a decision of rank 0."""
MERGE_WAIT_S = 30.0
LEAVE_S = 1.0
"""Maximum time rank 0 waits for the others, and where something ended the capture."""


class Recording:
    """Base class of the recorders: path of the trace, warnings and early end."""

    def __init__(self, path: str | Path, *, token_sample: int = 0, force: bool) -> None:
        check_token_sample(token_sample)
        self._token_sample = token_sample
        self.path = Path(path)
        self.iteration = 0
        self.warnings: list[str] = []
        self._force = force
        self._ended = ""  # what ended the capture early

    def end_early(self, why: str) -> None:
        """Record the reason for an early end of the capture in the trace.

        ``why`` completes the sentence "rank 2 was ...": "interrupted by SIGINT".
        """
        self._ended = self._ended or " ".join(why.split())[:200]

    def _merge(self, folder: Path) -> Merged:
        """Merge all segments of a folder, and warn of missing data."""
        for failure in recover(folder, patience_s=0.0):
            self._warn(failure)
        merged = merge_into(folder, self.path, force=self._force)
        for remark in (*merged.missing, *merged.remarks, *merged.contradictions):
            self._warn(remark)
        if self._token_sample and not any(s.token_sample for s in merged.trace.sites):
            self._warn(NO_SAMPLE)
        return merged

    def _merge_when_closed(self, folder: Path, world: int) -> Merged | None:
        """Merge the segments when all ranks have closed; warn if they do not."""
        # ranks that are a step ahead may wait for an interrupted rank: they end only
        # after this process has exited
        patience_s = LEAVE_S if self._ended else MERGE_WAIT_S
        deadline = time.monotonic() + patience_s
        waiting = set(range(world))
        while waiting and time.monotonic() < deadline:
            waiting = {
                r for r in waiting if not (rank_folder(folder, r) / CLOSED).exists()
            }
            if waiting:
                time.sleep(0.02)
        if waiting:
            self._warn(
                f"ranks {sorted(waiting)} have not ended their capture: when they "
                f"have, run moetraffic merge {folder} -o {self.path}"
            )
            return None
        try:
            return self._merge(folder)
        except Exception as error:
            # the training is complete: keep the segments and report the error
            reason = str(error) if isinstance(error, MoetrafficError) else repr(error)
            self._warn(f"no trace is written: {reason}")
            return None

    def _warn(self, message: str, *, logged: bool = True) -> None:
        """Keep a warning, and log it unless the same message was logged before."""
        if message not in self.warnings:
            self.warnings.append(message)
            if logged:
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

    All ranks reach ``store``, which is None where no other rank exists; ``key`` is used
    once.  Rank 0 calls ``decide``; the result is ``otherwise`` if it does not answer
    within 30 s.
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
    ``force`` removes the files of an earlier capture; ``number`` counts the recorders
    of a process, and is equal on all ranks.
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


def describe(
    workload: Workload | None,
    world: int,
    *,
    model: str,
    router: str,
    k: int,
    every: int = 1,
) -> Meta:
    """Create the metadata of a new capture of ``world`` ranks.

    Model and router names ("" if unknown) and experts per token (0 if unknown) take
    precedence over the workload's.
    """
    backend = dist.get_backend() if dist.is_initialized() else ""
    meta = Meta(
        origin="captured",
        model=model,
        router=router,
        k=k,
        every=every,
        world=world,
        backend=backend,
        moetraffic=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    if workload is None:
        return meta
    shape, gating = workload.model, workload.gating
    layout, training = workload.layout, workload.training
    return replace(
        meta,
        model=model or shape.name,
        router=router or gating.router,
        dispatch=gating.dispatch,
        **{n: getattr(layout, n) for n in ("dp", "tp", "pp", "ep", "cp", "order")},
        layers=shape.layers,
        hidden=shape.hidden,
        experts=shape.experts,
        k=k or gating.k,
        capacity_factor=(
            float("nan") if gating.dispatch == "dropless" else gating.capacity_factor
        ),
        dtype=training.dtype,
        seed=training.seed,
        data_seed=-1 if training.data_seed is None else training.data_seed,
        workload=workload.to_json(),
    )
