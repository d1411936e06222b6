"""Start the ranks of one host and supervise them until all have ended.

A run ends when every rank has ended; after the failure of a rank, the others are ended
after a short grace period; if a rank does not become ready, or does not go on in time,
all are ended.  No started process outlives the call, and if this process is killed, the
kernel kills the ranks.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import board
from .blame import Blame, Namer, RankEnd, first_failure, process_state
from .board import Board, State
from .environment import FILE_STORE, PARENT, RankEnvironment

LOOK_EVERY_S = 0.03
LAST_LINES = 60
REST_S = 2.0
"""Longest wait, in s, for the kernel to end killed processes."""

Rows = npt.NDArray[np.void]
OnRows = Callable[[Rows], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the ranks ended, and the root cause of a failure."""

    ok: bool  # every rank ended by itself with exit code 0
    interrupted: int  # signal that interrupted this process; 0 for none
    blame: Blame | None  # rank that failed first; None if ok or interrupted
    exit_codes: tuple[int, ...]  # of each rank; negative: the signal that ended it
    stderr: tuple[tuple[str, ...], ...]  # last lines of each rank

    @property
    def sentence(self) -> str:
        """Description of the failure as one sentence; "" on success."""
        if self.interrupted:
            return f"interrupted by {signal.Signals(self.interrupted).name}"
        return str(self.blame or "")


def launch(
    command: Sequence[str],
    *,
    ranks: int,
    environment: Mapping[str, str] | None = None,
    start_s: float = 120.0,
    silence_s: float = 300.0,
    grace_s: float = 3.0,
    on_rows: OnRows | None = None,
    namer: Namer | None = None,
    rank_env: RankEnvironment | None = None,
) -> Outcome:
    """Run a Python program as several ranks on this host until all have ended.

    Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, a fresh FileStore (see
    :func:`~moetraffic.launch.environment.rendezvous`), the
    :mod:`~moetraffic.launch.board`, and OMP_NUM_THREADS=1 where it is not set.  Its
    stdin is empty, its stdout is this process's.  In the main thread, SIGINT and
    SIGTERM are forwarded to the ranks once, which then have ``grace_s`` to end; a
    second one ends them at once.

    Parameters
    ----------
    command
        Arguments of Python: ``["-m", module, ...]``, or a file with its arguments.
    environment
        Variables added to this process's own.
    start_s, silence_s, grace_s
        Longest time until every rank is READY; without a note or a change of position
        of a READY rank; and until the other ranks end after one failed.
    on_rows
        Called with the rows of the board when one of them has changed.
    namer
        Names a rank's n-th operation.
    rank_env
        Rank of this process if torchrun or srun started it: only that one is run, and
        it uses the launcher's rendezvous address.
    """
    ranks_env = [RankEnvironment(rank, ranks, rank) for rank in range(ranks)]
    if rank_env is not None:
        ranks_env = [rank_env]
    if not ranks or min(start_s, silence_s) <= 0 or grace_s < 0:
        raise ValueError(f"ranks and deadlines must be positive: {ranks}, {start_s} s")
    rows = Board(ranks_env[0].world)
    started: list[Rank] = []
    blame, patience, interrupted = None, "", 0
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder, _signals() as got:
        shared = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            **(environment or {}),
            PARENT: str(os.getpid()),
            board.PATH: rows.path,
        }
        if rank_env is None:
            shared[FILE_STORE] = f"{folder}/store"
        try:
            for env in ranks_env:
                own = dict(
                    zip(
                        ("RANK", "WORLD_SIZE", "LOCAL_RANK"), map(str, env), strict=True
                    )
                )
                started.append(Rank(env.rank, start(command, shared | own)))
            deadlines = start_s, silence_s, grace_s
            interrupted, patience = _until_ended(started, rows, got, deadlines, on_rows)
        except OSError as error:
            reason, number = f"could not be started: {error}", len(started)
            blame = Blame(rank=number, operation="start-up", reason=reason)
        finally:
            _end(started)
            os.close(rows.fd)
    ends = [rank.end(rows.rows[rank.number]) for rank in started]
    codes = tuple(int(rank.process.returncode) for rank in started)
    if not interrupted and any(codes):
        blame = blame or first_failure(ends, namer, patience)
    return Outcome(
        ok=not (any(codes) or blame or interrupted),
        interrupted=interrupted,
        blame=blame,
        exit_codes=codes,
        stderr=tuple(tuple(rank.lines) for rank in started),
    )


def start(command: Sequence[str], environment: Mapping[str, str]) -> Any:
    """Start a rank in a session of its own.

    There it does not receive the terminal's Ctrl-C, which the supervisor forwards, and
    all processes that it starts end with it.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "moetraffic.launch", *command],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


class Rank:
    """Process of a rank, the last lines of its stderr, and its end."""

    def __init__(self, number: int, process: Any) -> None:
        self.number, self.process = number, process
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.ended_s = math.inf  # when its end was seen
        self.state = "running"  # of the process, before it was killed
        lines = (line.rstrip() for line in process.stderr)
        self.reader = threading.Thread(target=self.lines.extend, args=(lines,))
        self.reader.daemon = True
        self.reader.start()

    def runs(self) -> bool:
        """Whether the rank runs; once it has ended, what it started is killed."""
        if self.process.returncode is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.process.pid, flags) is None:
            return True
        # not reaped yet, so no other process group can have this number
        self.kill()
        self.ended_s, self.state = time.monotonic(), "ended"
        return False

    def kill(self) -> None:
        """Kill the rank and all processes that it started."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def end(self, row: np.void) -> RankEnd:
        """Describe the end of the rank, whose row of the board is given."""
        code = self.process.returncode if self.state == "ended" else None
        return RankEnd(
            self.number, row, self.state, code, self.ended_s, tuple(self.lines)
        )


def _until_ended(
    ranks: Sequence[Rank],
    rows: Board,
    signals: list[int],
    deadlines: tuple[float, float, float],
    on_rows: OnRows | None,
) -> tuple[int, str]:
    """Wait until all ranks have ended or must; return the signal, and the deadline."""
    start_s, silence_s, grace_s = deadlines
    numbers = [rank.number for rank in ranks]
    began_s, give_up_s, interrupted = time.monotonic(), math.inf, 0
    before, changed_s = rows.rows[numbers], np.full(len(ranks), began_s)
    while True:
        now_s, row = time.monotonic(), rows.rows[numbers]
        moved = row["position"] != before["position"]
        moved |= row["time_ns"] != before["time_ns"]
        changed_s[moved], before = now_s, row
        if moved.any() and on_rows is not None:
            on_rows(row)
        running = np.array([rank.runs() for rank in ranks])
        while signals:
            number = signals.pop(0)
            give_up_s = now_s if interrupted else now_s + grace_s
            for rank in () if interrupted else ranks:
                if rank.process.returncode is None:
                    rank.process.send_signal(number)
            interrupted = interrupted or number
        if any(rank.process.returncode for rank in ranks):
            give_up_s = min(give_up_s, now_s + grace_s)
        if not running.any() or now_s >= give_up_s:
            return interrupted, ""
        if give_up_s == math.inf:
            ready, done = row["state"] >= State.READY, row["state"] == State.DONE
            if now_s - began_s > start_s and (running & ~ready).any():
                return 0, f" within {start_s:g} s of its start"
            # on a busy machine a process may end long after it is done: it is not
            # blamed while another has announced a silence
            announced_ns = np.where(running, row["until_ns"], 0).max()
            until_ns = np.where(done, announced_ns, row["until_ns"])
            late = (now_s - changed_s > silence_s) & (until_ns < time.monotonic_ns())
            if (running & ready & late).any():
                return 0, f" for {silence_s:g} s"
        time.sleep(LOOK_EVERY_S)


def _end(ranks: Sequence[Rank]) -> None:
    """Kill running ranks and everything that they started; read their last lines."""
    for rank in ranks:
        if rank.runs():
            stopped = process_state(rank.process.pid) == "stopped"
            rank.state = "stopped" if stopped else "running"
    for rank in ranks:
        rank.kill()
    until_s = time.monotonic() + REST_S
    for rank in ranks:
        # only its own parent, the ended rank, hears of the end of a grandchild
        with suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < until_s:
                os.killpg(rank.process.pid, 0)
                time.sleep(0.005)
        rank.reader.join(max(until_s - time.monotonic(), 0.1))
        if not rank.reader.is_alive():
            rank.process.stderr.close()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM within the context, in the main thread."""
    received: list[int] = []
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda n, _: received.append(n))
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
