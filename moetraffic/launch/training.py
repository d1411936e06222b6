"""Train the built-in model on this host's ranks, and capture its traffic."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from moetraffic.capture.annotate import SAVE_EVERY
from moetraffic.capture.hook import native
from moetraffic.errors import CaptureError, Interrupted
from moetraffic.patterns import Workload
from moetraffic.trace import Trace
from moetraffic.trace.merge.log_folder import log_folder, prepare
from moetraffic.trace.merge.log_format import ranks_of
from moetraffic.trace.merge.merging import NothingRecorded, merge, write

from .environment import RankEnvironment
from .rank_monitor import Heartbeat
from .supervisor import Outcome, launch


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

    Under another launcher, this process runs one of its ranks.  ``moetraffic capture``
    and ``moetraffic demo`` call this function.

    Parameters
    ----------
    workload, output
        Workload to train, and path of the trace.
    force
        Whether to replace an existing trace.
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
        Which iterations are recorded, the maximum size, and the number of tokens whose
        experts are recorded, as in :class:`~moetraffic.capture.Recorder`.

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
    output = Path(output)
    reports = rank_env is None or rank_env.rank == 0
    ranks = workload.layout.world
    if workload.training.virtual or rank_env is not None:
        ranks = 1
    if reports:
        prepare(output, force=force, overwrite=overwrite)
    if workload.training.virtual:
        say(
            "virtual ranks are kept in memory: the trace is saved every "
            f"{SAVE_EVERY} iterations and at the end"
        )
    elif rank_env is None or rank_env.local_rank == 0:
        native.build_if_possible(say)
    before = _written(output)
    elsewhere = rank_env is not None
    progress = StepProgress(
        ranks,
        on_step or (lambda done, note: None),
        "rank 0's loss" if elsewhere else "mean loss",
    )
    outcome = launch(
        [sys.executable, "-m", "moetraffic.models"],
        ranks=ranks,
        environment={
            "MOETRAFFIC_WORKLOAD": workload.to_json(),
            "MOETRAFFIC_CAPTURE": str(output.absolute()),
            "MOETRAFFIC_FORCE": "1" if force else "",
            "MOETRAFFIC_EVERY": str(every),
            "MOETRAFFIC_MAX_SIZE": str(most_bytes or ""),
            "MOETRAFFIC_TOKEN_SAMPLE": str(token_sample or ""),
        },
        # ranks on other hosts are not monitored: torch's timeouts end those
        start_deadline_s=math.inf if elsewhere else 120.0,
        operation_deadline_s=math.inf if elsewhere else 300.0,
        grace_s=10.0,
        on_event=progress,
        rank_env=rank_env,
    )
    if outcome.ok and (not reports or _written(output) != before):
        return Trace.open(output) if reports else None
    if not reports:
        raise RankEnded(outcome)
    why = outcome.sentence or _last_message(outcome)
    many = rank_env is not None and rank_env.world > 1
    kept = _kept(output, before, progress.steps, force=force, others=many)
    if outcome.interrupted:
        raise Interrupted(f"{why}; {kept}", outcome.interrupted)
    raise CaptureError(f"{why}; {kept}")


def _last_message(outcome: Outcome) -> str:
    """Return the last message of a rank that ended without an error."""
    lines = [line.strip() for rank in outcome.stderr for line in rank]
    said = next((line for line in reversed(lines) if line), "the capture ended early")
    return said.removeprefix("moetraffic: ")[:400]


class StepProgress:
    """Training progress of all ranks, from their heartbeats.

    It calls ``tick`` for each step that all ranks have ended, with a text of their mean
    loss, which begins with ``name``.
    """

    def __init__(self, ranks: int, tick: Callable[[int, str], None], name: str) -> None:
        self._ranks, self._tick, self._name = ranks, tick, name
        self._losses: dict[int, dict[int, float]] = {}  # iteration -> rank -> loss
        self.steps = 0  # steps that at least one rank has ended

    def __call__(self, event: Heartbeat) -> None:
        """Update from a heartbeat; report a step that all ranks have ended."""
        iteration, loss = event.fields.get("iteration"), event.fields.get("loss")
        if event.event != "step" or not isinstance(iteration, int):
            return
        self.steps = max(self.steps, iteration + 1)
        losses = self._losses.setdefault(iteration, {})
        losses[event.rank] = float(loss) if isinstance(loss, int | float) else math.nan
        if len(losses) < self._ranks:
            return
        # a full pipe loses lines: do not wait for earlier steps
        self._losses = {i: t for i, t in self._losses.items() if i > iteration}
        mean = sum(losses.values()) / len(losses)
        self._tick(iteration + 1, f"{self._name} {mean:.3f}")


def _written(path: Path) -> int:
    """Return the modification time of a file in ns, 0 if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else 0


def _kept(output: Path, before: int, trained: int, *, force: bool, others: bool) -> str:
    """Merge the logs of an interrupted capture, and describe the result.

    The output had the modification time ``before`` (ns) before the capture, in which a
    rank ended ``trained`` steps; ``others`` is whether ranks that another launcher
    started may still be writing.
    """
    folder = log_folder(output)
    if ranks_of(folder) and _written(output) == before:
        if others:
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
    of = f" of {trained}" if trained > steps else ""
    return f"{steps}{of} iterations are kept in {output}" + (
        f" ({missing})" if missing else ""
    )
