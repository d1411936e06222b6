"""Find the rank that caused a failure of several ranks.

A failure of one rank makes the others fail: gloo reports "Connection closed by peer" or
"Timed out" without naming a rank.  So causes are tested in order of certainty:

1. a rank that found data or settings that contradict its plan;
2. a rank that ended by a signal of another process, or without a report;
3. a rank that reported an error of its own;
4. a rank that a signal has stopped;
5. a rank that ended with an error that no failure of another rank explains;
6. a rank that ended early, without an error;
7. a rank that did not respond: the one with the least progress;
8. of ranks that only report the loss of others, the one with the least progress.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .board import Cause, State, decoded

AFTERMATH = re.compile(
    r"timed?[ _-]?out|connection (was )?(likely )?(closed|reset|refused)|closed by peer"
    r"|broken pipe|pair closure|got 0 bytes|IoException|DistNetworkError"
    r"|watchdog|ncclRemoteError",
    re.IGNORECASE,
)
"""Error messages of torch.distributed on a rank whose peer has failed."""

SIGNALS = {number.value: number.name for number in signal.Signals}

SAME_MOMENT_S = 1.0
"""Time, in s, within which the observed order of ends is unreliable."""

Namer = Callable[[int, int], str]
"""Function from rank and n to the name of its n-th operation; "" past the last."""


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Rank that failed first, its operation and the reason."""

    rank: int
    operation: str  # "" where it is not known
    reason: str  # completes the sentence "rank 2 ..."

    def __str__(self) -> str:
        place = f" at {self.operation}" if self.operation else ""
        return f"rank {self.rank}{place} {self.reason}"


@dataclass(frozen=True)
class RankEnd:
    """What is known of a rank when its run has ended."""

    rank: int
    row: np.void  # its last row of the board, of type ROW
    process: str  # "running", "stopped" or "ended", before it was killed
    exit_code: int | None = None  # negative: a signal; None: unknown
    ended_s: float = float("inf")  # when its end was seen
    stderr: Sequence[str] = ()  # last lines

    @property
    def failed(self) -> bool:
        """Whether the rank reported a failure."""
        return bool(self.row["state"] == State.FAILED)

    @property
    def complaint(self) -> str:
        """Message that the rank reported, or the last line of its stderr."""
        if self.failed:
            return decoded(self.row["message"])
        return next((line for line in reversed(self.stderr) if line.strip()), "")

    @property
    def aftermath(self) -> bool:
        """Whether the rank's error only reports the failure of another rank."""
        if self.failed:
            return bool(self.row["cause"] == Cause.PEER)
        return AFTERMATH.search("\n".join(self.stderr[-5:])) is not None

    @property
    def progress(self) -> tuple[bool, int, int, int]:
        """Progress of the rank, comparable with that of others."""
        state = min(int(self.row["state"]), State.READY)
        done = bool(self.row["state"] == State.DONE)
        return done, state, int(self.row["position"]), int(self.row["time_ns"])


def first_failure(
    ends: Sequence[RankEnd], namer: Namer | None = None, patience: str = ""
) -> Blame | None:
    """Find the rank that failed first; None if no rank failed.

    ``namer`` names a rank's n-th operation, for ranks that did not name their place;
    ``patience`` describes the deadline that expired, for ranks that did not respond.
    """
    rank, reason = next(_candidates(ends, patience), (None, ""))
    if rank is None:
        return None
    at_fault = int(rank.row["blames"]) if rank.failed else rank.rank
    return Blame(rank=at_fault, operation=operation(rank, namer), reason=reason)


def operation(end: RankEnd, namer: Namer | None = None) -> str:
    """Return what a rank did last, or failed to begin."""
    place, position = decoded(end.row["place"]), int(end.row["position"])
    if place or namer is None:
        return place
    ready = end.row["state"] >= State.READY or position
    return namer(end.rank, position // 2) if ready else "start-up"


def _candidates(
    ends: Sequence[RankEnd], patience: str
) -> Iterator[tuple[RankEnd, str]]:
    """Yield ranks and reasons, the most certain first."""
    by_time = sorted(ends, key=lambda e: e.ended_s)
    lost = [e for e in by_time if e.process == "ended" and not e.failed]
    reported = [e for e in by_time if e.failed]
    for e in reported:  # 1
        if e.row["cause"] == Cause.MISMATCH:
            yield e, e.complaint
    for e in lost:  # 2; NCCL's watchdog aborts a rank if another is lost
        code = e.exit_code
        if code is None and e.row["state"] != State.DONE:
            yield e, "ended without an error report: it was killed, or crashed"
        abort = code == -signal.SIGABRT and e.aftermath
        if code is not None and code < 0 and not abort:
            yield e, f"was ended by {SIGNALS.get(-code, -code)}{_detail(e)}"
    for e in reported:  # 3
        if e.row["cause"] == Cause.OWN:
            yield e, f"failed: {e.complaint}"
    for e in ends:  # 4
        if e.process == "stopped" and not e.failed:
            yield e, "was stopped by a signal and did not go on"
    for e in lost:  # 5
        if e.exit_code and not e.aftermath:
            yield e, f"ended with exit code {e.exit_code}" + _detail(e)
    failures = [e.ended_s for e in ends if e.exit_code or e.process != "ended"]
    for e in lost:  # 6
        early = e.exit_code == 0 and e.row["state"] != State.DONE
        if failures and early and e.ended_s <= min(failures) + SAME_MOMENT_S:
            yield e, "ended early, without an error"
    for e in sorted(ends, key=lambda e: e.progress):  # 7
        if e.process == "running" and not e.failed:
            done = e.row["state"] == State.DONE
            also = ", though it had reported to be done" if done else ""
            yield e, f"did not {'end' if done else 'answer'}{patience}{also}"
    for e in sorted(ends, key=lambda e: (*e.progress[:3], -e.progress[3])):  # 8
        if e.failed:
            yield e, e.complaint
        elif e.exit_code:
            yield e, f"ended with exit code {e.exit_code}" + _detail(e)


def _detail(end: RankEnd) -> str:
    return f": {end.complaint}" if end.complaint else ""


def process_state(pid: int) -> str:
    """Return the state of a process: "running", "stopped" or "ended"."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "ended"
    return "stopped" if letter in "Tt" else "ended" if letter in "ZX" else "running"


def pid_namespace() -> str:
    """Return the identifier of this process's PID namespace; "" if unknown.

    Containers on one host may have equal host names but different processes.
    """
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
