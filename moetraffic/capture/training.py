"""Train the built-in model on this host's ranks, and capture its traffic."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

from moetraffic.capture.annotate import SAVE_EVERY
from moetraffic.capture.hook import native
from moetraffic.errors import CaptureError, Interrupted, LayoutError
from moetraffic.launch import devices
from moetraffic.launch.environment import RankEnvironment
from moetraffic.launch.ranks import Outcome, Rows, launch
from moetraffic.patterns import Workload
from moetraffic.patterns.workload import least_bytes
from moetraffic.trace import Trace
from moetraffic.trace.merge.log_folder import log_folder, prepare
from moetraffic.trace.merge.log_format import ranks_of
from moetraffic.trace.merge.merging import NothingRecorded, merge, write
from moetraffic.workload.text import check as check_text


class RankEnded(CaptureError):
    """Raised on a failed rank of another launcher; rank 0 reports the capture."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.sentence)
        self.outcome = outcome


def capture_run(
    workload: Workload,
    output: str | Path,
    *,
    force: bool = False,
    rank_env: RankEnvironment | None = None,
    on_step: Callable[[int, str], None] | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    overwrite: str = "pass force=True",
    every: int = 1,
    most_bytes: int | None = None,
    token_sample: int = 0,
) -> Trace | None:
    """Train the built-in model on ranks of this host and capture the traffic.

    Under another launcher, this process runs one of its ranks, ``rank_env``.

    Parameters
    ----------
    workload, output, force
        Workload to train, path of the trace, and whether an existing one is replaced.
    rank_env
        Rank of this process if another launcher started the ranks.
    on_step
        Called with the number of steps that all ranks have ended and a text with their
        mean loss.
    say
        Called with each message for the user.
    overwrite
        Remedy for an existing trace, for the error message.
    every, most_bytes, token_sample
        Limits of the record, as in :class:`~moetraffic.capture.Recorder`.

    Returns
    -------
    Trace or None
        The trace; None on ranks other than rank 0.

    Raises
    ------
    TraceError
        If the output cannot be written, or exists already.
    CaptureError, Interrupted
        If a rank failed, which the message names, or the user interrupted the run;
        captured data are kept.
    RankEnded
        If this is a rank of another launcher, but not rank 0, which reports.
    """
    if not isinstance(workload, Workload):
        raise CaptureError(
            f"a capture trains a Workload, not {workload!r:.60}: import it "
            "from moetraffic.patterns, or run moetraffic capture"
        )
    output, virtual = Path(output), workload.training.virtual
    elsewhere = rank_env is not None
    reports = rank_env is None or rank_env.rank == 0
    if reports:
        prepare(output, force=force, overwrite=overwrite)
    if virtual:
        say(
            "virtual ranks are kept in memory: the trace is saved every "
            f"{SAVE_EVERY} iterations and at the end"
        )
    elif rank_env is None or rank_env.local_rank == 0:
        native.build_if_possible(say)
    before, steps = _written(output), [0, 0]  # ended by all ranks, by any

    def progress(rows: Rows) -> None:
        steps[1] = int(rows["done"].max())
        if on_step is not None and (ended := int(rows["done"].min())) > steps[0]:
            steps[0] = ended
            name = "rank 0's loss" if elsewhere else "mean loss"
            on_step(ended, f"{name} {rows['value'].mean():.3f}")

    outcome = launch(
        ["-m", "moetraffic.models"],
        ranks=1 if virtual or elsewhere else workload.layout.world,
        environment={
            "MOETRAFFIC_WORKLOAD": workload.to_json(),
            "MOETRAFFIC_CAPTURE": str(output.absolute()),
            "MOETRAFFIC_FORCE": "1" if force else "",
            "MOETRAFFIC_EVERY": str(every),
            "MOETRAFFIC_MAX_SIZE": str(most_bytes or ""),
            "MOETRAFFIC_TOKEN_SAMPLE": str(token_sample or ""),
        },
        # ranks on other hosts are not monitored: torch's timeouts end those
        start_s=math.inf if elsewhere else 120.0,
        silence_s=math.inf if elsewhere else 300.0,
        grace_s=10.0,
        on_rows=progress,
        rank_env=rank_env,
    )
    if outcome.ok and (not reports or _written(output) != before):
        return Trace.open(output) if reports else None
    if not reports:
        raise RankEnded(outcome)
    lines = [line for rank in outcome.stderr for line in rank if line.strip()]
    last = lines[-1].strip().removeprefix("moetraffic: ")[:400] if lines else ""
    why = outcome.sentence or last or "the capture ended early"
    kept = _kept(output, before, steps[1], force=force, rank_env=rank_env)
    if outcome.interrupted:
        raise Interrupted(f"{why}; {kept}", outcome.interrupted)
    raise CaptureError(f"{why}; {kept}")


def _written(path: Path) -> int:
    """Return the modification time of a file in ns, 0 if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else 0


def _kept(
    output: Path,
    before: int,
    trained: int,
    *,
    force: bool,
    rank_env: RankEnvironment | None,
) -> str:
    """Merge the logs of an interrupted capture, and describe the result.

    The output had the modification time ``before`` (ns) before the capture, in which a
    rank ended ``trained`` steps.
    """
    folder = log_folder(output)
    if ranks_of(folder) and _written(output) == before:
        if rank_env is not None and rank_env.world > 1:  # others may still write
            return (
                f"what was captured is kept in {folder}: when all ranks have ended, "
                f"moetraffic merge {folder} makes a trace of it"
            )
        try:
            merged = merge(folder)
        except NothingRecorded:
            merged = None
        if merged is None or not len(merged.trace.steps.iteration):
            # a step that did not end yields no data, and the folder would block the
            # next attempt
            shutil.rmtree(folder)
            return "nothing was captured, for no step ended"
        write(merged, folder, output, force=force)
    if _written(output) == before:
        return "nothing was captured"
    with Trace.open(output) as trace:
        steps, missing = len(trace.steps.iteration), trace.meta.missing
    total = f" of {trained}" if trained > steps else ""
    note = f" ({missing})" if missing else ""
    return f"{steps}{total} iterations are kept in {output}{note}"


def check_workload(workload: Workload, *, ranks: int) -> None:
    """Check that this machine can train a workload, before any rank starts.

    ``ranks`` is the number of its ranks on this host; for a virtual run, of simulated
    ranks.
    """
    shape, training = workload.model, workload.training
    if training.device == "cuda":
        # slow import, needed only if a GPU is requested
        import torch

        if not torch.cuda.is_available():
            raise LayoutError(
                "device cuda needs a CUDA GPU and a torch built for it, but torch "
                f"{torch.__version__} sees none: use --device cpu"
            )
    else:
        # a virtual run is one process, whatever the number of its ranks
        share = 1.0 if training.virtual else ranks / workload.layout.world
        needed, available = least_bytes(workload) * share, devices.available_bytes()
        if available is not None and needed > available:
            raise LayoutError(
                "the model, its gradients and the optimizer's moments need at least "
                f"{needed / 1e9:.3g} GB on this machine, but {available / 1e9:.3g} GB "
                "are available: lower --layers, --hidden, --experts, --micro-batch or "
                "--nproc"
            )
    check_text(
        training.corpus,
        sequence=shape.window,
        vocabulary=shape.vocabulary - int(shape.masked),
    )
