"""The Recorder: three lines in anyone's training loop, and there is a trace."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.patterns import Workload
from moetraffic.trace.merge import Merged, merge_into
from moetraffic.trace.model import (
    ALL_TO_ALL,
    CLOCK,
    ROUTING,
    STEP_KINDS,
    UNKNOWN_TIME,
)
from moetraffic.trace.segment import PATTERN, rank_folder
from moetraffic.trace.spool import CLOSED, Spool, segments_folder

from . import clock, hook
from .annotate import is_layer, place, subscribe
from .claim import claim
from .description import (
    checked_groups,
    checked_placement,
    describe,
    refuse_untellable,
)
from .evidence import LeftOut, cause, counts_of, loss_of, tokens_of
from .sites import SiteTable, Spot
from .window import Event, Window, build_segment

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("moetraffic")

WINDOW_STEPS = 32
WINDOW_BYTES = 4 << 20
MERGE_WAIT_S = 30.0
LEAVE_S = 1.0
FORWARD_PHASES = ("dispatch", "combine")
_recorders = itertools.count()


class Recorder:
    """Records every collective of this process, and every routing it is told of.

    Each rank makes one; together they leave one trace.  Nothing is communicated while
    recording, and an error in the recording never ends the training: a record that
    cannot be (a negative count, a loss that is no number) is left out, logged once for
    its kind, and counted in the trace.

    ::

        with Recorder("run.h5") as recorder:
            for batch in batches:
                loss = train_step(batch)
                recorder.step(loss=loss)

    Parameters
    ----------
    path
        The trace to write.  Until the end, segments lie in ``<path>.segments``.
    workload
        What is trained, where it is one of ours.
    model, router, k
        A name for the model, one for its router, and the experts of a token: noise
        floors need it.
    groups
        This rank's process groups by kind (``{"ep": group}``); the default group is
        the world.  Groups that are not named are of kind "other".
    placement
        By layer, the group rank that holds each expert ``[E]``; contiguous if absent.
    window
        Steps that a killed rank can lose: twice in so many, they are written out.
    force
        Overwrite ``path`` and what an earlier capture left.

    Raises
    ------
    CaptureError
        If an argument is of the wrong kind; from :meth:`start`, if another recorder
        runs in this process, or the output cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        workload: Workload | None = None,
        model: str = "",
        router: str = "",
        k: int = 0,
        groups: Mapping[str, dist.ProcessGroup | None] | None = None,
        placement: Mapping[int, Sequence[int]] | None = None,
        window: int = WINDOW_STEPS,
        force: bool = False,
    ) -> None:
        refuse_untellable(model=str(model), router=str(router), k=k, window=window)
        if window < 1:
            raise CaptureError(
                f"a window is at least one step, but is {window}: raise window"
            )
        self.path = Path(path)
        self.iteration = 0
        self.warnings: list[str] = []
        self._workload = workload
        self._about: dict[str, Any] = {
            "model": str(model),
            "router": str(router),
            "k": k,
        }
        self._force = force
        self._left_out = LeftOut(self._warn)
        self._ended = ""  # what ended the capture early
        self._seen = False  # anything at all was recorded
        # one half may be under way to the disk while the other is filled
        self._window_steps = max(1, window // 2)
        self._window = Window()
        self._placement = checked_placement(placement or {})
        named = checked_groups(groups or {})
        self._lock = threading.Lock()
        self._segments = 0
        self._sites = SiteTable(named)
        self._clocks: Any = np.zeros(0, CLOCK)
        self._shared_clock = True
        self._undo: list[Callable[[], Any]] = []
        self._spool: Spool | None = None
        self._step_start = UNKNOWN_TIME
        self._rank, self._world = 0, 1
        # the ranks make their recorders in the same order: a name in common
        self._number = next(_recorders)

    # ---- life ------------------------------------------------------------------

    def start(self) -> Recorder:
        """Begin to record.

        Raises
        ------
        CaptureError
            As the class says.
        """
        if dist.is_initialized():
            self._rank, self._world = dist.get_rank(), dist.get_world_size()
        if hook.installed():
            raise CaptureError(
                "one recorder runs in a process at a time, but one is running "
                "already: close it first"
            )
        store = None
        if self._world > 1:
            store = dist.distributed_c10d._get_default_store()
        claim(self.path, store, self._rank, self._number, force=self._force)
        spool = Spool(segments_folder(self.path), self._rank, force=self._force)
        try:
            self._meta = describe(self._workload, self._world, **self._about)
            self._measure_clock("start")
            self._undo = [hook.install(self), subscribe(self._routing)]
        except BaseException:
            spool.close()
            raise
        self._spool = spool
        self._step_start = hook.now_ns()
        return self

    def step(
        self,
        *,
        loss: float | torch.Tensor | None = None,
        tokens: int | None = None,
        kind: str = "train",
    ) -> None:
        """End a step; what is recorded from now on belongs to the next one.

        Parameters
        ----------
        loss
            The loss of this rank's tokens.
        tokens
            How many tokens this rank trained on.
        kind
            "train", "evaluation" or "skipped".

        Raises
        ------
        CaptureError
            If the kind is none of these.
        """
        if kind not in STEP_KINDS:
            raise CaptureError(
                f"a step's kind is one of {', '.join(STEP_KINDS)}, not {kind!r}: "
                "choose one"
            )
        if self._spool is None:
            return
        now = hook.now_ns()
        value = loss_of(loss, self._left_out)
        count = tokens_of(tokens, self._left_out)
        with self._lock:
            self._window.steps.append(
                (
                    self.iteration,
                    value,
                    count,
                    self._step_start,
                    now,
                )
            )
            self._window.kinds.append(kind)
            self._seen = True
            self.iteration += 1
            self._step_start = now
            full = (
                len(self._window.steps) >= self._window_steps
                or self._window.bytes >= WINDOW_BYTES
            )
        if full:
            self._commit(final=False)

    def end_early(self, why: str) -> None:
        """Note what ends the capture before its time; the trace tells it.

        Parameters
        ----------
        why
            Completes the sentence "rank 2 was ...": "interrupted by SIGINT".
        """
        self._ended = self._ended or " ".join(why.split())[:200]

    def close(self, *, merged: bool = True) -> Merged | None:
        """End the recording: write the rest and, on rank 0, merge all ranks' segments.

        A merge that fails is logged; the segments stay, and ``moetraffic merge`` tries
        again.  Where nothing at all was recorded, nothing is left behind.

        Parameters
        ----------
        merged
            Whether rank 0 waits for the others (up to 30 s, 1 s where something ended
            the capture early) and merges.

        Returns
        -------
        Merged or None
            On rank 0, what was merged; the segments are removed where it is complete.
        """
        if self._spool is None:
            return None
        for undo in reversed(self._undo):
            undo()
        if not self._shared_clock:
            self._measure_clock("end")
        spool = self._spool
        if self._seen or (merged and not self._ended):
            self._commit(final=True)
        self._spool = None
        unclosed = spool.close()
        for said in (unclosed, self._left_out.summary):
            if said:
                self._warn(said)
        if spool.error:
            self._warn(
                f"{spool.lost_windows} windows of rank {self._rank} are lost: "
                f"{spool.error}"
            )
        if not merged or self._rank != 0:
            return None
        return self._merge(spool.folder)

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        self.end_early(cause(error))
        # other ranks may be dead: what is here is kept, and not merged
        self.close(merged=False)
        folder = segments_folder(self.path)
        if any(self._own_folder().glob(PATTERN)):
            log.warning(
                "rank %d was %s: %d iterations of it are kept in %s; when all ranks "
                "have ended, moetraffic merge %s makes a trace of them",
                *(self._rank, self._ended, self.iteration, folder, folder),
            )

    # ---- the hook's observer ---------------------------------------------------

    def all_to_all(
        self,
        group: dist.ProcessGroup,
        tensor: torch.Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        row_bytes: int,
    ) -> Callable[[int], None]:
        """Note an all-to-all (called by the hook)."""
        if len(sent) != group.size() or len(received) != group.size():
            return _unheard  # torch refuses the call: nothing is sent
        event = self._event(ALL_TO_ALL, group, dtype=tensor.dtype, row_bytes=row_bytes)
        event.sent, event.received = sent, received
        return self._note(event, 16 * len(sent), tensor.is_cuda)

    def collective(
        self,
        operation: str,
        group: dist.ProcessGroup,
        tensors: Sequence[torch.Tensor],
        peers: tuple[int, int],
    ) -> Callable[[int], None]:
        """Note another collective (called by the hook)."""
        dtype = tensors[0].dtype if tensors else None
        size = tensors[0].element_size() if tensors else 0
        event = self._event(operation, group, dtype=dtype, row_bytes=size, peers=peers)
        event.sent = sum(t.numel() * t.element_size() for t in tensors)
        return self._note(event, 0, bool(tensors) and tensors[0].is_cuda)

    def failed(self, operation: str, error: Exception) -> None:
        """Remember that a call could not be recorded (called by the hook)."""
        self._left_out.add(f"call of {operation}", repr(error))

    # ---- inside ----------------------------------------------------------------

    def _routing(
        self,
        layer: int,
        demand: torch.Tensor,
        dropped: torch.Tensor | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        try:
            owner = group if group is not None else dist.group.WORLD
            if owner is None:
                return  # no process group: nothing travels
            if not is_layer(layer):
                raise ValueError(f"a layer is an index from 0 on, not {layer!r}")
            counts = counts_of(demand, "demand")
            missed = None if dropped is None else counts_of(dropped, "dropped")
            if missed is not None and (
                missed.shape != counts.shape or (missed > counts).any()
            ):
                raise ValueError("more is dropped than was routed")
            event = self._event(ROUTING, owner, experts=len(counts), layer=layer)
            event.sent, event.received = counts, missed
            self._note(event, 8 * len(counts), True)
        except (TypeError, ValueError) as error:
            self._left_out.add(ROUTING, str(error))
        except Exception as error:
            # whatever it is, the training must not notice
            self.failed(ROUTING, error)

    def _event(
        self,
        operation: str,
        group: dist.ProcessGroup,
        *,
        dtype: torch.dtype | None = None,
        row_bytes: int = 0,
        peers: tuple[int, int] = (-1, -1),
        experts: int = 0,
        layer: int | None = None,
    ) -> Event:
        """The event of a call that is made now, with its site."""
        here = place()
        routes = operation == ROUTING
        direction = "forward"
        if torch._C._current_graph_task_id() != -1:
            again = routes or here.phase in FORWARD_PHASES
            direction = "recompute" if again else "backward"
        with self._lock:
            site, sequence = self._sites.at(
                Spot(
                    operation,
                    self._sites.group(group),
                    here.layer if layer is None else layer,
                    "" if routes else here.phase,
                    "" if routes else here.label,
                    direction,
                    peers,
                ),
                dtype,
                row_bytes,
                experts,
            )
        return Event(site, self.iteration, sequence, hook.now_ns(), row_bytes)

    def _note(self, event: Event, size: int, unawaited: bool) -> Callable[[int], None]:
        event.awaited = not unawaited
        self._seen = True
        with self._lock:
            self._window.events.append(event)
            self._window.bytes += 200 + size

        def ended(when: int) -> None:
            if event.awaited:
                event.end = when

        return ended

    def _commit(self, *, final: bool) -> None:
        with self._lock:
            window, self._window = self._window, Window()
            index, self._segments = self._segments, self._segments + 1
            groups, sites = tuple(self._sites.groups), tuple(self._sites.sites)
        left_out = self._left_out.words
        assert self._spool is not None
        self._spool.commit(
            lambda: build_segment(
                window,
                rank=self._rank,
                index=index,
                final=final,
                node=socket.gethostname(),
                meta=self._meta,
                groups=groups,
                sites=sites,
                placement=self._placement,
                clocks=self._clocks,
                ended=self._ended if final else "",
                left_out=left_out,
                steps_at_risk=0 if final else 2 * self._window_steps,
            )
        )

    def _measure_clock(self, moment: str) -> None:
        if not dist.is_initialized() or self._world == 1:
            return
        store = dist.distributed_c10d._get_default_store()
        measured = clock.knots(
            store, self._rank, self._world, f"{self._number}/{moment}"
        )
        self._clocks = np.concatenate([self._clocks, measured])
        self._shared_clock = bool((self._clocks["error_ns"] == 0).all())

    def _own_folder(self) -> Path:
        return rank_folder(segments_folder(self.path), self._rank)

    def _merge(self, folder: Path) -> Merged | None:
        # who was interrupted may be waited for by ranks that are a step ahead: they
        # end when this one has left
        patience_s = LEAVE_S if self._ended else MERGE_WAIT_S
        deadline = time.monotonic() + patience_s
        waiting = set(range(self._world))
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
            merged = merge_into(folder, self.path, force=self._force)
        except Exception as error:
            # whatever it is, the training has done its part: the segments stay
            told = str(error) if isinstance(error, MoetrafficError) else repr(error)
            self._warn(f"no trace is written: {told}")
            return None
        for said in (*merged.missing, *merged.remarks, *merged.contradictions):
            self._warn(said)
        return merged

    def _warn(self, message: str) -> None:
        """Log a thing once; the training goes on."""
        if message not in self.warnings:
            self.warnings.append(message)
            log.warning("%s", message)


def _unheard(_when: int) -> None:
    """The end of a call that is not recorded."""
