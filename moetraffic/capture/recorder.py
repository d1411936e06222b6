"""Recorder of the collectives and expert routings of a training process."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from moetraffic.capture.hook.call_recording import CallSink, now_ns
from moetraffic.capture.hook.completion import CompletionTracker, DeviceClock
from moetraffic.capture.hook.native import load
from moetraffic.capture.records.journal import Journal
from moetraffic.capture.routers.router_hooks import LABEL, watch_routers
from moetraffic.patterns import Workload
from moetraffic.trace.model import ROUTING
from moetraffic.trace.segments.segment import PATTERN, rank_folder
from moetraffic.trace.segments.store import RankFolder, segments_folder

from . import clock_offset
from .annotate import here, is_layer, subscribe
from .group_kinds import kind_of
from .hook import python as hook
from .hook.calling_block import BlockSearch
from .input_validation import (
    OmittedRecords,
    cause,
    check_experts_per_token,
    check_limits,
    check_names_and_counts,
    checked_groups,
    checked_placement,
    demand_of,
    loss_of,
    step_kind_of,
    tokens_of,
)
from .optimizer_steps import OptimizerSteps
from .process_exit import before_exit
from .record_format import PAUSE, ROUTED, STEP
from .recording import WINDOW_STEPS, Recording, check_output, describe
from .running import running
from .token_sample import TokenSample

if TYPE_CHECKING:
    from moetraffic.trace.merge.merging import Merged

log = logging.getLogger("moetraffic")

_recorders = itertools.count()


class Recorder(Recording):
    """Recorder of all collectives and reported expert routings of this process.

    Each rank creates one recorder; the records of all ranks are merged into one trace.
    Where the program does not call :meth:`step`, optimizer steps delimit iterations.
    Recording causes no communication and never ends the training by an error: invalid
    records (a negative count, a loss that is no number) are left out and counted.

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
        The trained workload, if it is a :class:`~moetraffic.patterns.Workload`.
    model, router, k
        Name of the model, name of its router, and number of experts per token, from 1
        on (None: unknown), which noise floors are computed from.
    groups
        This rank's process groups by kind (``{"ep": group}``).  Other groups have the
        name of their device mesh's dimension, the kind that Megatron-Core or DeepSpeed
        gives them, "world" if they have all ranks, or else kind "other".
    placement
        By layer, the group rank that holds each expert ``[E]``; contiguous if absent.
    window
        Number of steps; half of it, and the step under way, are lost at most if the
        rank and the process that writes its records are killed.  A step waits before
        more are in memory alone.
    every
        Record one iteration of this many: 0, N, 2 N ...; the others are observed, but
        not stored.  It needs steps that the program or its optimizer ends.
    most_bytes
        Maximum size of the segments of all ranks; each rank has an equal share, and
        records no iteration after the window that reaches it.  None: unlimited.
    token_sample
        Tokens of each layer and micro-batch, drawn at random, whose experts are
        recorded: co-activation of experts and hosts per token follow from them.
    force
        Overwrite ``path`` and remaining files of an earlier capture.

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
        k: int | None = None,
        groups: Mapping[str, dist.ProcessGroup | None] | None = None,
        placement: Mapping[int, Sequence[int]] | None = None,
        window: int = WINDOW_STEPS,
        every: int = 1,
        most_bytes: int | None = None,
        token_sample: int = 0,
        force: bool = False,
    ) -> None:
        check_names_and_counts(model=str(model), router=str(router), window=window)
        check_experts_per_token(k)
        check_limits(window=window, every=every, most_bytes=most_bytes)
        self._most_bytes = most_bytes
        super().__init__(path, token_sample=token_sample, force=force)
        self._workload = workload
        self._about: dict[str, Any] = {
            "model": str(model),
            "router": str(router),
            "k": k or 0,
            "every": every,
        }
        self._left_out = OmittedRecords(self._leave_out)
        self._window_steps = window
        self._placement = checked_placement(placement or {})
        self._kinds = checked_groups(groups or {})
        self._undo = contextlib.ExitStack()
        self._folder: RankFolder | None = None
        self._shared_clock = True
        self._rank, self._world = 0, 1
        # equal on all ranks, because all create their recorders in the same order
        self._number = next(_recorders)

    # ---- life ------------------------------------------------------------------

    def start(self) -> Recorder:
        """Start recording the collectives and routings of this process.

        Raises
        ------
        CaptureError
            If another recorder runs in this process, or the output cannot be written.
        """
        if dist.is_initialized():
            self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._met: set[str] = set()
        self._k = 0  # experts per token of the routers' ids so far
        self._routers: set[str] = set()  # their classes
        hook.stop_attached_recorder(self.path)
        hook.check_not_installed()
        store = self._store()
        check_output(self.path, store, self._rank, self._number, force=self._force)
        with contextlib.ExitStack() as on_failure:
            folder = RankFolder(
                segments_folder(self.path), self._rank, force=self._force
            )
            on_failure.callback(folder.leave)
            native = load()
            device = DeviceClock(lambda record: self.put(record))
            self._journal = self._start_journal(folder, device, native)
            self.put = self._journal.put
            # the committer holds the lock of the folder as well
            on_failure.callback(self._journal.close, even_empty=False)
            self._completion = CompletionTracker(self.put, device, native)
            self._measure_clock("start")
            on_failure.callback(self._undo.close)
            steps = OptimizerSteps(self._optimizer_stepped, self._failed)
            self._undo.callback(steps.undo)
            sink = CallSink(
                put=self.put,
                meet=self._meet,
                number=self._journal.number,
                before=device.ahead_of,
                launched=self._completion.launched,
                waiting=self._completion.waiting,
                failed=self._failed,
                blocks=BlockSearch(),
            )
            self._undo.callback(hook.install(sink, native))
            self._undo.callback(self._completion.install())
            sampled = self._token_sample > 0
            self._sample = TokenSample(self._token_sample, self._rank)
            self._undo.callback(subscribe(self._routing, choices=sampled))
            self._undo.callback(
                watch_routers(
                    on_failure=self._left_out.unread,
                    on_router=self._router_seen,
                    choices=sampled,
                )
            )
            self._undo.callback(before_exit(self._exiting))
            on_failure.pop_all()
        self._folder = folder
        running.add(self)
        return self

    def _start_journal(
        self, folder: RankFolder, device: DeviceClock, native: ModuleType | None
    ) -> Journal:
        meta = describe(self._workload, self._world, **self._about)
        about = {
            "folder": str(folder.folder.absolute()),
            "rank": self._rank,
            "node": socket.gethostname(),
            "meta": meta.as_dict(),
            "placement": self._placement,
            "window": self._window_steps,
            "begun": now_ns(),
            "threads": [threading.main_thread().ident, threading.get_ident()],
            # at least one byte, because 0 is unlimited
            "most_bytes": -(-(self._most_bytes or 0) // self._world),
        }
        return Journal(
            about,
            folder.lock,
            device.resolve,
            self._left_out.add,
            self._warn,
            native,
        )

    def step(
        self,
        *,
        loss: float | torch.Tensor | None = None,
        tokens: int | None = None,
        kind: str | None = None,
    ) -> None:
        """End the current step: later records belong to the next step.

        Parameters
        ----------
        loss
            Loss of this rank's tokens.
        tokens
            Number of tokens that this rank trained on.
        kind
            "train", "evaluation" or "skipped".  By default, "skipped" where a gradient
            scaler skipped all optimizer steps since the last call, else "train".

        Invalid values are not recorded, and counted in the trace: a training goes on.
        """
        if self._folder is None:
            return
        value = loss_of(loss, self._left_out)
        count = tokens_of(tokens, self._left_out)
        number = step_kind_of(kind, self._left_out)
        self.iteration += 1
        ended = (STEP, now_ns(), count, number, value)
        self._journal.end_step(ended, explicit=True)

    def pause(self) -> None:
        """Record no iteration that begins later, until :meth:`resume`.

        An iteration that has begun is recorded to its end.  Iterations keep their
        numbers, also those that are not recorded.
        """
        if self._folder is not None:
            self.put((PAUSE, True))

    def resume(self) -> None:
        """Record iterations that begin later, after :meth:`pause`."""
        if self._folder is not None:
            self.put((PAUSE, False))

    def flush(self) -> bool:
        """Write all records so that they survive the end of this process.

        Called before ``os._exit``, which ends a process without closing the recorder.

        Returns
        -------
        bool
            Whether all records are written.
        """
        return self._folder is not None and self._journal.flush()

    def close(self, *, merged: bool = True) -> Merged | None:
        """Stop recording, write the remaining records and merge all segments on rank 0.

        If the merge fails, the error is logged and the segments are kept, so that
        ``moetraffic merge`` can merge them later.  Where nothing was recorded, no file
        is left.

        Parameters
        ----------
        merged
            Whether rank 0 waits for the others (up to 30 s, 1 s where something ended
            the capture early) and merges.

        Returns
        -------
        Merged or None
            On rank 0, the result of the merge; segments are removed if it is complete.
        """
        if self._folder is None:
            return None
        self._undo.close()
        self._completion.settle()
        running.discard(self)
        if not self._shared_clock:
            self._measure_clock("end")
        if self._ended:
            self._journal.send(ended=self._ended)
        if self._left_out.words:
            self._journal.send(left_out=self._left_out.words)
        report = self._journal.close(even_empty=merged and not self._ended)
        folder, self._folder = self._folder, None
        folder.leave()
        self._warn_of_losses(report)
        if not merged or self._rank != 0:
            return None
        return self._merge_when_closed(folder.folder, self._world)

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
        self._close_alone(self._ended)

    # ---- inside ----------------------------------------------------------------

    def _close_alone(self, why: str) -> None:
        """Close without a merge: other ranks may have died, or run on."""
        if self._folder is None:
            return
        self.close(merged=False)
        folder = segments_folder(self.path)
        if any(rank_folder(folder, self._rank).glob(PATTERN)):
            log.warning(
                "rank %d was %s: %d iterations of it are kept in %s; when all ranks "
                "have ended, moetraffic merge %s makes a trace of them",
                *(self._rank, why, self.iteration, folder, folder),
            )

    def _exiting(self, status: int) -> None:
        """Write the remaining records before ``os._exit(status)``."""
        if status:
            self.end_early(f"ended by os._exit({status})")
        if hook.attached():
            self.close(merged=False)
        else:
            self._close_alone("ended by os._exit")

    def _meet(self, group: dist.ProcessGroup) -> None:
        """Register the ranks of a process group at its first call."""
        name = group.group_name
        if name in self._met:
            return
        ranks = dist.get_process_group_ranks(group)
        everyone = ranks == list(range(self._world))
        kind = self._kinds.get(name) or kind_of(group, everyone=everyone)
        self._journal.send(group={"name": name, "kind": kind, "ranks": list(ranks)})
        self._met.add(name)

    def _failed(self, operation: str, error: Exception) -> None:
        """Count a collective that could not be recorded."""
        self._left_out.add(f"call of {operation}", repr(error))

    def _router_seen(self, name: str, k: int) -> None:
        """Note a router's class, and the k of its ids (0: unknown; -1: they differ)."""
        common = (k or self._k) if 0 in (k, self._k) or k == self._k else -1
        if name not in self._routers or common != self._k:
            self._k = common
            self._routers.add(name)
            named = self._about["router"] or self._workload
            classes = "" if named else ", ".join(sorted(self._routers))
            self._journal.send(k=common, router=classes)

    def _optimizer_stepped(self, record: tuple[Any, ...]) -> None:
        # a program that calls step() ends its iterations itself
        self._journal.end_step(record, explicit=False, counts=not self.iteration)

    def _routing(
        self,
        layer: int,
        demand: torch.Tensor,
        dropped: torch.Tensor | None,
        group: dist.ProcessGroup | None,
        chosen: torch.Tensor | None = None,
    ) -> None:
        try:
            owner = group if group is not None else dist.group.WORLD
            if owner is None:
                return  # no process group: no communication
            if not is_layer(layer):
                raise ValueError(f"a layer is an index from 0 on, not {layer!r}")
            if isinstance(demand, torch.Tensor) and not demand.is_cpu:
                # read once the device has computed it, to avoid synchronization
                counts: Any = demand.detach().clone()
                missed: Any = None if dropped is None else dropped.detach().clone()
            else:
                counts, missed = demand_of(demand, dropped)
            self._meet(owner)
            # a report may leave its group out, and a hook may not know it: the merge
            # then determines it
            label = LABEL if here.place.label == LABEL else ""
            again = int(torch._C._current_graph_task_id() != -1)
            thread, grad = threading.get_ident(), torch.is_grad_enabled()
            place = owner.group_name, layer, label
            # a recomputed forward pass reports the same tokens again
            sample = None if again else self._sampled(chosen)
            found = counts, missed, sample
            self.put((ROUTED, now_ns(), *place, thread, again, grad, *found))
        except (TypeError, ValueError) as error:
            self._left_out.add(ROUTING, str(error))
        except Exception as error:
            # no error of the recording may reach the training
            self._failed(ROUTING, error)

    def _sampled(self, chosen: torch.Tensor | None) -> tuple[int, torch.Tensor] | None:
        """Sample tokens of a routing; None where their experts are unknown."""
        if chosen is None:
            return None
        try:
            with torch.no_grad(), _disable_current_modes():
                return self._token_sample, self._sample.take(chosen)
        except ValueError as error:
            self._left_out.add("sample of tokens", str(error))
            return None

    def _leave_out(self, message: str) -> None:
        """Log the first omitted record of a kind, and store the counts in the trace."""
        # the ranks run one program, and the merge names them all
        self._warn(message, logged=self._rank == 0)
        if self._folder is not None:
            self._journal.send(left_out=self._left_out.words)

    def _warn_of_losses(self, report: Mapping[str, Any]) -> None:
        """Log the errors that the journal and the committer process reported."""
        lost = ""
        if report.get("error") and report["error"] != report.get("left"):
            lost = (
                f"{report['lost_windows']} windows of rank {self._rank} are lost: "
                f"{report['error']}"
            )
        unclosed = report.get("unclosed", "")
        left = f"rank {self._rank}: {report['left']}" if report.get("left") else ""
        for message in (unclosed, left, lost):
            if message:
                self._warn(message)

    def _store(self) -> Any:
        """Return the key-value store of the ranks; None if there is no other rank."""
        if self._world == 1 or dist.get_backend() == "fake":
            return None  # the ranks of a fake group do not exist
        return dist.distributed_c10d._get_default_store()

    def _measure_clock(self, moment: str) -> None:
        store = self._store() if dist.is_initialized() else None
        if store is None:
            return
        measured = clock_offset.measure_offset(
            store, self._rank, self._world, f"{self._number}/{moment}"
        )
        self._journal.send(clocks=measured.tolist())
        self._shared_clock = bool((measured["error_ns"] == 0).all())

    def abandon(self) -> None:
        """Detach a forked child from its parent's recorder."""
        self._undo.close()
        self._journal.abandon()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.leave()  # otherwise a child that outlives its parent keeps the lock
        running.discard(self)
