"""One rank of a training run: ``python -m moetraffic.models``.

Started by ``moetraffic capture``, torchrun or srun.  Environment variables:

- ``MOETRAFFIC_WORKLOAD``: a :class:`~moetraffic.patterns.Workload` as JSON; empty: the
  default workload, data-parallel over all ranks;
- ``MOETRAFFIC_CAPTURE``: path of the trace to capture; empty: nothing is captured;
- ``MOETRAFFIC_FORCE``: ``1`` replaces a trace that is already there;
- ``MOETRAFFIC_EVERY``, ``MOETRAFFIC_MAX_SIZE``: every N-th iteration is recorded, and
  the maximum size in bytes;
- ``MOETRAFFIC_TOKEN_SAMPLE``: number of tokens of a micro-batch whose experts are
  recorded;
- RANK, WORLD_SIZE, LOCAL_RANK and where to meet: see :mod:`moetraffic.launch`.

Exit codes: 0 when trained to the end, 2 with one sentence on standard error when the
workload cannot run, 128 + n when signal n (SIGINT, SIGTERM) ended it after an
iteration, 1 for anything else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from moetraffic.errors import MoetrafficError
from moetraffic.launch.board import Cause, State, own
from moetraffic.launch.devices import own_gpu
from moetraffic.launch.environment import RankEnvironment, current_rank, rendezvous
from moetraffic.models.parallelism.groups import ParallelGroups, connect
from moetraffic.patterns import Layout, Workload

from .train import train
from .virtual_training import train_virtually

if TYPE_CHECKING:
    from moetraffic.capture import Recorder, VirtualRecorder

WORKLOAD = "MOETRAFFIC_WORKLOAD"
CAPTURE = "MOETRAFFIC_CAPTURE"
FORCE = "MOETRAFFIC_FORCE"
EVERY = "MOETRAFFIC_EVERY"
MOST_BYTES = "MOETRAFFIC_MAX_SIZE"
TOKEN_SAMPLE = "MOETRAFFIC_TOKEN_SAMPLE"

TIMEOUT = timedelta(minutes=5)
"""A rank that waits longer for its peers gives up."""


def main() -> int:
    """Train one rank of the configured workload; return the exit code."""
    own().note(state=State.STARTING)
    stop = StopSignal()
    try:
        rank_env = current_rank()
        workload = _workload(rank_env)
        with _process_group(rank_env, workload.training.device):
            _run(workload, stop)
    except MoetrafficError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        pass  # a second signal
    except Exception as error:
        # after a signal peers may have ended already, which is no error
        if not stop.caught:
            if _out_of_memory(error):
                return _refuse(
                    "training needs more memory than there is, on the "
                    f"{workload.training.device}: lower --micro-batch, --sequence, "
                    "--hidden, --layers or --experts"
                )
            lines = str(error).splitlines() or [type(error).__name__]
            # what torch raises when another rank is gone or late
            peer = isinstance(error, dist.DistError) or "gloo" in str(error)
            own().fail(lines[0], Cause.PEER if peer else Cause.OWN)
            raise
    if stop.caught:
        return 128 + stop.caught
    own().note(state=State.DONE)
    return 0


def _refuse(sentence: str) -> int:
    """Report the error that ends this rank; return the exit code."""
    own().fail(sentence)
    print(f"moetraffic: {sentence}", file=sys.stderr)
    return 2


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on the CPU or a GPU."""
    texts = ("can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    )


class StopSignal:
    """Handler of SIGINT and SIGTERM, which ends training after the iteration."""

    def __init__(self) -> None:
        self.caught = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._catch)

    def __call__(self) -> bool:
        """Whether a signal to end training has been caught."""
        return bool(self.caught)

    @contextmanager
    def noted_in(self, recorder: Recorder | VirtualRecorder | None) -> Iterator[None]:
        """Record in the trace whether a signal ended the training in this context."""
        try:
            yield
        finally:
            if self.caught and recorder is not None:
                name = signal.Signals(self.caught).name
                recorder.end_early(f"interrupted by {name}")

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught:
            raise KeyboardInterrupt
        self.caught = number


def _workload(rank_env: RankEnvironment | None) -> Workload:
    text = os.environ.get(WORKLOAD, "")
    if text:
        return Workload.from_json(text)
    ranks = 1 if rank_env is None else rank_env.world
    return Workload(layout=Layout(dp=ranks, ep=ranks))


def _run(workload: Workload, stop: StopSignal) -> None:
    groups = None
    if not workload.training.virtual:
        groups = connect(workload.layout, timeout=TIMEOUT)
    own().note(state=State.READY)
    with _recorder(workload, groups) as recorder, stop.noted_in(recorder):
        if groups is not None:
            train(workload, recorder, _send_step, groups=groups, stop=stop)
            return
        train_virtually(workload, recorder, _send_step, stop=stop)


def _send_step(iteration: int, loss: float) -> None:
    own().note(f"iteration {iteration}", done=iteration + 1, value=loss)


def _recorder(
    workload: Workload, groups: ParallelGroups | None
) -> AbstractContextManager[Recorder | VirtualRecorder | None]:
    """Create the recorder of this rank; without groups, of all virtual ranks."""
    path = os.environ.get(CAPTURE, "")
    if not path:
        return nullcontext()
    # imports HDF5, which is not needed above
    from moetraffic.capture import Recorder, VirtualRecorder

    force = os.environ.get(FORCE, "") == "1"
    token_sample = int(os.environ.get(TOKEN_SAMPLE, "") or 0)
    if groups is None:
        return VirtualRecorder(
            path, workload=workload, token_sample=token_sample, force=force
        )
    placement = groups.placement(workload.model.experts)
    return Recorder(
        path,
        workload=workload,
        groups=groups.by_kind(),
        placement=dict.fromkeys(workload.model.moe_layers, placement),
        every=int(os.environ.get(EVERY, "") or 1),
        most_bytes=int(os.environ.get(MOST_BYTES, "") or 0) or None,
        token_sample=token_sample,
        force=force,
    )


@contextmanager
def _process_group(rank_env: RankEnvironment | None, device: str) -> Iterator[None]:
    """Initialize ``torch.distributed`` for the context if there are several ranks."""
    if rank_env is None:
        yield
        return
    # where there is no GPU for device cuda, training says so in a sentence
    cuda = device == "cuda" and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(own_gpu(rank_env.local_rank, torch.cuda.device_count()))
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=rendezvous(),
        rank=rank_env.rank,
        world_size=rank_env.world,
        timeout=TIMEOUT,
    )
    try:
        yield
    finally:
        # gloo's threads may abort a process that exits without this
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
