"""Supervise the ranks of one host until all have ended.

A run ends when every rank has ended; after the failure of a rank, the others are ended
after a short grace period; if a rank does not become ready, or sends no heartbeat in
time, all are ended.  No started process outlives the call, and if this process is
killed, the kernel kills the ranks.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from .environment import RankEnvironment
from .rank_monitor import Heartbeat, RankMonitor
from .root_cause import OperationNamer, RootCause


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Exit states of the ranks and the root cause of a failure."""

    ok: bool  # every rank ended by itself with exit code 0
    interrupted: int  # signal that interrupted this process; 0 for none
    blame: RootCause | None  # rank that failed first; None if ok or interrupted
    exit_codes: tuple[int, ...]  # of each rank; negative: the signal that ended it
    killed: tuple[bool, ...]  # whether the supervisor had to end the rank
    stderr: tuple[tuple[str, ...], ...]  # last lines of each rank
    duration_s: float

    @property
    def sentence(self) -> str:
        """Description of the failure as one sentence; "" on success."""
        if self.interrupted:
            return f"interrupted by {signal.Signals(self.interrupted).name}"
        if self.blame is None:
            return ""
        at = f" at {self.blame.operation}" if self.blame.operation else ""
        return f"rank {self.blame.rank}{at} {self.blame.reason}"


def launch(
    command: Sequence[str],
    *,
    ranks: int,
    environment: Mapping[str, str] | None = None,
    start_deadline_s: float = 120.0,
    operation_deadline_s: float = 300.0,
    grace_s: float = 3.0,
    on_event: Callable[[Heartbeat], None] | None = None,
    namer: OperationNamer | None = None,
    rank_env: RankEnvironment | None = None,
) -> Outcome:
    """Run a command as several ranks on this host until all of them have ended.

    Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, the path of a fresh FileStore in
    MOETRAFFIC_FILESTORE (see :func:`~moetraffic.launch.rendezvous`), the two channels
    of :mod:`~moetraffic.launch.heartbeat`, and OMP_NUM_THREADS=1 where it is not set.
    Its stdin is empty, its stdout is this process's, its stderr is kept for the
    outcome.  In the main thread, SIGINT and SIGTERM are forwarded to the ranks once,
    which then have ``grace_s`` to end; a second one ends them at once.

    Parameters
    ----------
    command
        Program and arguments, the same for every rank.
    ranks
        Number of ranks.
    environment
        Variables added to this process's own.
    start_deadline_s
        Longest time from the start to every rank's "ready" heartbeat; infinity for
        programs that send none.
    operation_deadline_s
        Longest time without a heartbeat or progress of a ready rank: inside an
        operation, between two, or between "done" and its end.
    grace_s
        Time that the other ranks have to end after one failed.
    on_event
        Called with every heartbeat.
    namer
        Returns the name of a rank's n-th operation, for ranks that use
        ``heartbeat.counter()``.
    rank_env
        Rank of this process if torchrun or srun started the ranks.  One process is run,
        that rank, and the ranks use the launcher's rendezvous address.

    Returns
    -------
    Outcome
        Exit codes and, after a failure, the rank and operation that caused it.

    Raises
    ------
    ValueError
        If ``ranks`` or a deadline is not positive.
    """
    if rank_env is not None:
        ranks = 1
    if ranks < 1 or min(start_deadline_s, operation_deadline_s) <= 0 or grace_s < 0:
        raise ValueError(
            "ranks and deadlines must be positive, but are "
            f"{ranks}, {start_deadline_s} s and {operation_deadline_s} s"
        )
    with tempfile.TemporaryDirectory(
        prefix="moetraffic-", ignore_cleanup_errors=True
    ) as folder:
        watch = RankMonitor(ranks, Path(folder), on_event, rank_env)
        try:
            with _forwarding(watch):
                watch.start(command, environment or {})
                watch.until_ended(start_deadline_s, operation_deadline_s, grace_s)
        finally:
            watch.end()
        codes = tuple(s.exit_code or 0 for s in watch.states)
        ok = not (any(codes) or watch.not_started or watch.interrupted)
        return Outcome(
            ok=ok,
            interrupted=watch.interrupted,
            blame=None if ok or watch.interrupted else watch.blame(namer),
            exit_codes=codes,
            killed=tuple(s.killed for s in watch.states),
            stderr=tuple(s.stderr for s in watch.states),
            duration_s=watch.duration_s,
        )


@contextmanager
def _forwarding(watch: RankMonitor) -> Iterator[None]:
    """Forward SIGINT and SIGTERM to the ranks within the context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _: FrameType | None) -> None:
        watch.signals.append(number)

    before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
