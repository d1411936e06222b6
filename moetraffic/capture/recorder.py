"""Recorder of the collectives and expert routings of a training process."""

from __future__ import annotations

import contextlib
import itertools
import logging
import platform
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from moetraffic import __version__
from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.patterns import Workload
from moetraffic.trace.choices import NO_SAMPLE
from moetraffic.trace.inference.routers import ROUTER
from moetraffic.trace.merge import log_format as words
from moetraffic.trace.merge.log_folder import (
    discard,
    lock_state,
    log_folder,
    prepare,
)
from moetraffic.trace.model import MOST_TOKEN_SAMPLE, ROUTING, Meta

from . import clock_offset, running
from .annotate import CallContext, is_layer, subscribe
from .group_kinds import kind_of
from .hook import calls as hook
from .hook.calling_block import BlockSearch
from .hook.completion import CompletionTracker, DeviceClock
from .hook.native import load
from .log import Log, RecordQueue
from .optimizer_steps import OptimizerSteps
from .routers.router_hooks import watch_routers
from .shared_store import SharedStore
from .token_sample import TokenSample, choice_ids
from .validation import (
    OmittedRecords,
    cause,
    check_name,
    check_number,
    checked_groups,
    checked_placement,
    demand_of,
    loss_of,
    step_kind_of,
    tokens_of,
)

if TYPE_CHECKING:
    from moetraffic.trace.merge.merging import Merged

logger = logging.getLogger("moetraffic")

MERGE_WAIT_S = 30.0
"""Longest wait of rank 0 for the others before it merges."""
LEAVE_S = 1.0  # where something ended the capture early

_recorders = itertools.count()


class Recorder:
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
        The trace to write.  Until the end, the ranks' logs lie in ``<path>.logs``.
    workload
        The trained workload, if it is a :class:`~moetraffic.patterns.Workload`.
    model, router, k
        Name of the model, name of its router, and number of experts per token (None:
        unknown), which noise floors are computed from.
    groups
        This rank's process groups by kind (``{"ep": group}``).  Other groups have the
        name of their device mesh's dimension, the kind that Megatron-Core or DeepSpeed
        gives them, "world" if they have all ranks, or else kind "other".
    placement
        By layer, the group rank that holds each expert ``[E]``; contiguous if absent.
    every
        Record one iteration of this many: 0, N, 2 N ...; the others are observed, but
        not stored.  It needs steps that the program or its optimizer ends.
    most_bytes
        Maximum size of the logs of all ranks; each rank has an equal share, and records
        no iteration that begins after reaching it.  None: unlimited.
    token_sample
        Tokens of each layer and micro-batch, drawn at random, whose experts are
        recorded: co-activation of experts and hosts per token follow from them.
    force
        Overwrite ``path`` and remaining files of an earlier capture.

    Raises
    ------
    CaptureError
        If an argument is of the wrong kind.
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
        every: int = 1,
        most_bytes: int | None = None,
        token_sample: int = 0,
        force: bool = False,
    ) -> None:
        check_name("model", str(model))
        check_name("router", str(router))
        check_number("k, the experts per token,", 1 if k is None else k, 1, 1 << 16)
        check_number("every", every, 1)
        size = 1 if most_bytes is None else most_bytes
        check_number("most_bytes", size, 1, 2**63)
        check_number("token_sample", token_sample, 0, MOST_TOKEN_SAMPLE)
        self.path, self._force = Path(path), force
        self.iteration = 0
        self.warnings: list[str] = []
        self._workload, self._every, self._most_bytes = workload, every, most_bytes
        self._names: dict[str, Any]
        self._names = {"model": str(model), "router": str(router), "k": k or 0}
        self._tokens = token_sample
        self._placement = checked_placement(placement or {})
        self._kinds = checked_groups(groups or {})
        # the ranks run one program, and the merge names them all
        self._omitted = OmittedRecords(lambda m: self._warn(m, logged=self._rank == 0))
        self._ended = ""  # what ended the capture early
        self._log: Log | None = None
        self._rank, self._world, self._shared_clock = 0, 1, True
        # equal on all ranks, because all create their recorders in the same order
        self._number = next(_recorders)

    # ---- life ------------------------------------------------------------------

    def start(self) -> Recorder:
        """Start recording the collectives and routings of this process.

        A CaptureError is raised if another recorder runs, or nothing can be written.
        """
        if running.recorder is not None:
            running.recorder.give_way(self.path)
        if dist.is_initialized():
            self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._router_k, self._routers = 0, set[str]()
        self._routings = itertools.count()
        # reads of values that a device has not computed yet, by kind of record
        self._deferred: deque[tuple[str, Callable[[], object]]] = deque()
        self._store = SharedStore(f"recorder-{self._number}")
        # rank 0 checks for all, as a rank that fails alone leaves the others waiting;
        # without an answer, this rank's own log is checked below
        if refused := self._store.ask_rank_0("output", self._refusal):
            raise CaptureError(refused)
        native = load()
        queue: Any = RecordQueue() if native is None else native
        queue.take()  # what an earlier recorder, or a parent's, has left
        folder, about = log_folder(self.path), self._about()
        self._device = DeviceClock(queue.put)
        self._log = Log(
            folder,
            self._rank,
            lock_state(folder, self._rank, force=self._force),
            about,
            queue,
            self._read_devices,
            self._warn,
            every=self._every,
            # at least one byte, because 0 is unlimited
            most_bytes=-(-(self._most_bytes or 0) // self._world),
        )
        self._undo = contextlib.ExitStack()
        try:
            self._install(self._log, queue, native)
        except BaseException:
            self._undo.close()
            self._log.close()
            self._log = None
            discard(folder, self._rank)
            raise
        return self

    def _install(self, log: Log, queue: Any, native: ModuleType | None) -> None:
        self._measure_clock("start")
        self._completion = CompletionTracker(queue.put, self._device, native)
        steps = OptimizerSteps(self._optimizer_stepped, self._omitted.add)
        self._undo.callback(steps.undo)
        sink = hook.CallSink(
            put=queue.put if native else queue.put_call,
            meet=self._meet,
            number=log.number,
            failed=lambda name, error: self._omitted.add(f"call of {name}", error),
            completion=self._completion,
            blocks=BlockSearch(log.number),
        )
        self._undo.callback(hook.install(sink, native))
        self._undo.callback(self._completion.install())
        self._sample = TokenSample(self._tokens, self._rank)
        self._undo.callback(subscribe(self._routing, choices=self._tokens > 0))
        self._undo.callback(
            watch_routers(
                partial(self._routing, label=ROUTER),
                on_failure=lambda error: self._omitted.add(ROUTING, error),
                on_router=self._router_seen,
                choices=self._tokens > 0,
            )
        )
        self._undo.callback(running.started(self))

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
        loss, tokens
            Loss of this rank's tokens, and their number.
        kind
            "train", "evaluation" or "skipped".  By default, "skipped" where a gradient
            scaler skipped all optimizer steps since the last call, else "train".
        """
        if self._log is None:
            return
        log, number, now = self._log, self.iteration, hook.now_ns()
        value = self._omitted.checked("loss", loss_of, loss, float("nan"))
        count = self._omitted.checked("token count", tokens_of, tokens, -1)
        code = self._omitted.checked("step kind", step_kind_of, kind, -1)
        self.iteration += 1
        later = isinstance(value, torch.Tensor)
        bits = loss_bits(float("nan") if later else value)
        log.end_step(words.STEP, now, count, code, bits)
        if later:
            self._deferred.append(
                ("loss", lambda: log.put(words.LOSS, 4, number, loss_bits(value)))
            )

    def pause(self) -> None:
        """Record no iteration that begins later, until :meth:`resume`.

        Iterations keep their numbers, also those that are not recorded.
        """
        if self._log is not None:
            self._log.put(words.PAUSE, 3, 1)

    def resume(self) -> None:
        """Record iterations that begin later, after :meth:`pause`."""
        if self._log is not None:
            self._log.put(words.PAUSE, 3, 0)

    def flush(self) -> bool:
        """Write all records now; return whether that was possible."""
        return self._log is not None and self._log.flush()

    def end_early(self, why: str) -> None:
        """Record the reason for an early end of the capture in the trace.

        ``why`` completes the sentence "rank 2 was ...": "interrupted by SIGINT".
        """
        self._ended = self._ended or " ".join(why.split())[:200]

    def close(self, *, merged: bool = True) -> Merged | None:
        """Stop recording, write the remaining records and merge all logs on rank 0.

        With ``merged``, rank 0 waits up to 30 s for the others (1 s where something
        ended the capture early), merges, and returns the result; complete logs are
        removed.  If the merge fails, the error is logged and the logs are kept, so that
        ``moetraffic merge`` can merge them later.
        """
        if self._log is None:
            return None
        self._undo.close()
        self._completion.settle()
        if not self._shared_clock:
            self._measure_clock("end")
        log = self._log
        log.add_facts(ended=self._ended)
        log.close()
        self._log = None
        if log.is_empty and (self._ended or not merged):
            discard(log.folder, log.rank)
        if not merged or self._rank != 0:
            return None
        return self._merge_when_closed(log.folder)

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
        self.close_alone(self._ended)

    def give_way(self, path: Path) -> None:
        """Refuse another recorder in this process, which writes to ``path``."""
        raise CaptureError(
            f"one recorder runs in a process at a time, but one is running already, of "
            f"{self.path}: close it before {path} is captured"
        )

    def abandon(self) -> None:
        """Detach a forked child from its parent's recorder."""
        self._undo.close()
        if self._log is not None:
            self._log.leave()
        self._log = None

    # ---- end -------------------------------------------------------------------

    def close_alone(self, why: str) -> None:
        """Close without a merge: other ranks may have died, or run on."""
        if self._log is None:
            return
        folder = self._log.folder
        self.close(merged=False)
        if folder.exists():  # else nothing was recorded
            logger.warning(
                "rank %d was %s: %d iterations of it are kept in %s; when all ranks "
                "have ended, moetraffic merge %s makes a trace of them",
                *(self._rank, why, self.iteration, folder, folder),
            )

    def exiting(self, status: int) -> None:
        """Write the remaining records before ``os._exit(status)``."""
        if status:
            self.end_early(f"ended by os._exit({status})")
        self.close_alone("ended by os._exit")

    def _merge_when_closed(self, folder: Path) -> Merged | None:
        """Merge the logs when all ranks have closed theirs; warn if they do not."""
        from moetraffic.trace.merge.merging import merge_into

        # ranks that are a step ahead may wait for an interrupted rank: they end only
        # after this process has exited
        deadline = time.monotonic() + (LEAVE_S if self._ended else MERGE_WAIT_S)
        waiting = list(range(self._world))
        while waiting := [rank for rank in waiting if not is_closed(folder, rank)]:
            if time.monotonic() > deadline:
                self._warn(
                    f"ranks {waiting} have not ended their capture: when they have, "
                    f"run moetraffic merge {folder} -o {self.path}"
                )
                return None
            time.sleep(0.02)
        try:
            merged = merge_into(folder, self.path, force=self._force)
        except Exception as error:
            # the training is complete: keep the logs and report the error
            reason = str(error) if isinstance(error, MoetrafficError) else repr(error)
            self._warn(f"no trace is written: {reason}")
            return None
        for remark in (*merged.missing, *merged.remarks, *merged.contradictions):
            self._warn(remark)
        if self._tokens and not any(s.token_sample for s in merged.trace.sites):
            self._warn(NO_SAMPLE)
        return merged

    # ---- records ---------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        """Describe the capture for the log."""
        meta = describe(self._workload, self._world, every=self._every, **self._names)
        return {
            "meta": meta.as_dict(),
            "capture": self._store.ask_rank_0("capture", lambda: secrets.token_hex(8)),
            "node": socket.gethostname(),
            "placement": self._placement,
            "begun": hook.now_ns(),
            "threads": [threading.main_thread().ident, threading.get_ident()],
        }

    def _meet(self, group: dist.ProcessGroup) -> int:
        """Return the number of a process group, registering it at its first call."""
        assert self._log is not None
        ranks = dist.get_process_group_ranks(group)
        everyone = ranks == list(range(self._world))
        name = group.group_name
        kind = self._kinds.get(name) or kind_of(group, everyone=everyone)
        return self._log.number("group", (name, kind, tuple(ranks)))

    def _router_seen(self, name: str, k: int) -> None:
        """Note a router's class, and the k of its ids (0: unknown; -1: they differ)."""
        assert self._log is not None
        before = self._router_k
        self._router_k = (k or before) if 0 in (k, before) or k == before else -1
        self._routers.add(name)
        named = self._names["router"] or self._workload
        router = "" if named else ", ".join(sorted(self._routers))
        self._log.add_facts(k=self._router_k, router=router)

    def _optimizer_stepped(
        self, end: int, in_backward: bool, skipped: bool | Sequence[torch.Tensor]
    ) -> None:
        """Record an optimizer step; tensors that tell if it was skipped come later."""
        log = self._log
        if log is None:
            return
        known = int(skipped) if isinstance(skipped, bool) else -1
        # a program that calls step() ends its iterations itself
        number = log.end_step(
            words.OPTIMIZER, end, int(in_backward), known, ends=not self.iteration
        )
        if not isinstance(skipped, bool):
            flags = skipped
            self._deferred.append(
                (
                    "optimizer step",
                    lambda: log.put(
                        *(words.UNSCALED, 4, number, any(float(f) > 0 for f in flags))
                    ),
                )
            )

    def _routing(
        self,
        layer: int,
        demand: torch.Tensor,
        dropped: torch.Tensor | None,
        group: dist.ProcessGroup | None,
        chosen: torch.Tensor | None = None,
        label: str = "",
    ) -> None:
        """Record a routing, and its counts when its device has computed them.

        A report may leave its group out, and a hook (``label``) may not know it: the
        merge then determines it.
        """
        try:
            owner = group if group is not None else dist.group.WORLD
            if owner is None or self._log is None:
                return  # no process group: no communication
            if not is_layer(layer):
                raise ValueError(f"a layer is an index from 0 on, not {layer!r}")
            log, again = self._log, torch._C._current_graph_task_id() != -1
            # a recomputed forward pass reports the same tokens again
            sample = None if again else self._sampled(chosen)
            number = next(self._routings)
            routed = (
                *(words.ROUTED, words.ROUTED_HEAD, number, hook.now_ns()),
                *(self._meet(owner), layer),
                log.number("context", CallContext(label=label, linked=bool(label))),
                *(log.number("thread", threading.get_ident()), again),
                torch.is_grad_enabled(),
            )
            on_device = isinstance(demand, torch.Tensor) and not demand.is_cpu
            if not on_device and (sample is None or sample.is_cpu):
                log.put(*routed, *self._counts(number, demand, dropped, sample))
                return
            counts = demand.detach().clone()
            missed = None if dropped is None else dropped.detach().clone()
            log.put(*routed)
            self._deferred.append(
                (
                    ROUTING,
                    lambda: log.put(*self._counts(number, counts, missed, sample)),
                )
            )
        except Exception as error:
            # no error of the recording may reach the training
            self._omitted.add(ROUTING, error)

    def _counts(
        self, number: int, demand: Any, dropped: Any, sample: torch.Tensor | None
    ) -> list[int]:
        """Build the COUNTS record of a routing; waits for its device."""
        copies, missed = demand_of(demand, dropped)
        values, (tokens, k) = copies + (missed or []), (0, 0)
        if sample is not None:
            ids = choice_ids(sample, len(copies))
            tokens, k = ids.shape
            values += ids.reshape(-1).tolist()
        length = words.COUNTS_HEAD + len(values)
        form = len(copies), missed is not None, tokens, k
        return [words.COUNTS, length, number, *form, *values]

    def _read_devices(self) -> None:
        """Put what devices have computed; called by the thread that writes the log."""
        reads = [self._deferred.popleft() for _ in range(len(self._deferred))]
        for kind, read in (("time of a device", self._device.resolve), *reads):
            try:
                read()
            except Exception as error:
                # a device has failed: other records remain valid
                self._omitted.add(kind, error)
        if self._log is not None and (counts := dict(self._omitted.counts)):
            self._log.add_facts(omitted=counts, reasons=dict(self._omitted.reasons))

    def _sampled(self, chosen: torch.Tensor | None) -> torch.Tensor | None:
        """Sample tokens of a routing; None where their experts are unknown."""
        with torch.no_grad(), _disable_current_modes():
            sample: torch.Tensor | None = self._omitted.checked(
                "sample of tokens", self._sample.take, chosen, None
            )
        return sample

    def _warn(self, message: str, *, logged: bool = True) -> None:
        """Keep a warning, and log it unless the same message was logged before."""
        if message not in self.warnings:
            self.warnings.append(message)
            if logged:
                logger.warning("%s", message)

    def _refusal(self) -> str:
        """Prepare the output; return why it cannot be written, "" if it can."""
        try:
            prepare(self.path, force=self._force, overwrite="give force=True")
        except CaptureError as error:
            return str(error)
        return ""

    def _measure_clock(self, moment: str) -> None:
        store = self._store.store
        if store is None or self._log is None or not dist.is_initialized():
            return
        measured, self._shared_clock = clock_offset.measure_offset(
            store, self._rank, self._world, moment
        )
        self._log.add_clocks(measured.tolist())


def is_closed(folder: Path, rank: int) -> bool:
    """Whether a rank has closed its log."""
    try:
        return words.read_state(words.state_file(folder, rank)).closed == 1
    except (OSError, CaptureError):
        return False  # it has not begun


def loss_bits(loss: float | torch.Tensor) -> int:
    """Return the bits of a loss as a float64 in an int64 word; waits for its device."""
    return int(np.float64(float(loss)).view(np.int64))


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

    A model, a router ("" if unknown) and k (0) precede those of the workload.
    """
    meta = Meta(
        origin="captured",
        model=model,
        router=router,
        k=k,
        every=every,
        world=world,
        backend=dist.get_backend() if dist.is_initialized() else "",
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
