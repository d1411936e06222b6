"""Find the rank that caused a failure of several ranks.

A failure of one rank makes the others fail: gloo reports "Connection closed by peer" or
"Timed out" without naming a rank.  So causes are tested in order of certainty:

1. a rank that reported received data that contradict its plan;
2. a rank that was ended by a signal that the supervisor did not send;
3. a rank that reported an error of its own;
4. a rank that a signal has stopped;
5. a rank that ended with an error that is not a consequence of another rank's failure;
6. a rank that ended early, without an error;
7. a rank that did not respond: the one with the least progress;
8. of ranks that only report the loss of others, the one with the least progress.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

AFTERMATH = re.compile(
    r"timed?[ _-]?out|connection (was )?(likely )?(closed|reset|refused)|closed by peer"
    r"|broken pipe|pair closure|got 0 bytes|IoException|DistNetworkError"
    r"|watchdog|ncclRemoteError",
    re.IGNORECASE,
)
"""Error messages of torch.distributed on a rank whose peer has failed."""

_SAME_MOMENT_S = 1.0
"""Time, in s, within which the observed order of ends is unreliable."""


@dataclass(kw_only=True)
class RankState:
    """State of one rank as observed by the supervisor."""

    rank: int
    last_event: str = ""  # "" before the first heartbeat
    operation: str = ""  # what the last heartbeat named
    entered: int = 0  # operations entered and left: 2 n + 1 inside the n-th
    changed_s: float = 0.0  # last heartbeat or progress: time.monotonic()
    within_s: float = 0.0  # announced time to the next heartbeat
    error: dict[str, Any] = field(default_factory=dict)  # fields of its "error" event
    ready: bool = False
    done: bool = False
    exit_code: int | None = None  # negative: the signal that ended it
    ended_s: float = float("inf")  # time at which its end was observed
    killed: bool = False  # by the supervisor
    stopped: bool = False  # by a signal, at the supervisor's last check
    stderr: tuple[str, ...] = ()

    @property
    def signalled(self) -> bool:
        """Whether a signal that the supervisor did not send terminated the rank."""
        return not self.killed and self.exit_code is not None and self.exit_code < 0

    @property
    def complaint(self) -> str:
        """Error message that the rank reported, or the last line of its stderr."""
        message = str(self.error.get("message", ""))
        return message or (self.stderr[-1] if self.stderr else "")

    @property
    def aftermath(self) -> bool:
        """Whether the rank's error only reports the failure of another rank."""
        if "cause" in self.error:
            return bool(self.error["cause"] == "peer")
        return bool(AFTERMATH.search("\n".join((self.complaint, *self.stderr[-5:]))))


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """Rank that failed first, its operation and the reason."""

    rank: int
    operation: str  # "" where it is not known
    reason: str  # completes the sentence "rank 2 ..."


OperationNamer = Callable[[int, int], str]
"""Function from rank and n to the name of its n-th operation; "" past the last."""


def first_failure(
    states: Sequence[RankState], namer: OperationNamer | None = None, patience: str = ""
) -> RootCause | None:
    """Find the rank that failed first; None if no rank failed.

    All ranks have ended.  ``namer`` names a rank's n-th operation, for ranks that ended
    without reporting it; ``patience`` describes the deadline that expired, for ranks
    that were killed.
    """
    found = next(_candidates(states, patience), None)
    if found is None:
        return None
    state, reason = found
    rank = state.error.get("blames", state.rank)
    return RootCause(
        rank=rank if rank in [s.rank for s in states] else state.rank,
        operation=_operation(state, namer),
        reason=reason,
    )


def _operation(state: RankState, namer: OperationNamer | None) -> str:
    """Return the operation that a rank was in, or failed to begin."""
    if state.error.get("operation"):
        return str(state.error["operation"])
    if namer is None:
        return state.operation
    if not state.ready:
        return state.operation or "start-up"
    return namer(state.rank, state.entered // 2) or state.operation


def _candidates(
    states: Sequence[RankState], patience: str
) -> Iterator[tuple[RankState, str]]:
    """Yield ranks and reasons, the most certain root cause first."""
    failed = _by_time(s for s in states if s.exit_code != 0)
    silent = [s for s in failed if s.killed and not s.error]
    ended = [s for s in failed if not s.killed]
    # Step 1: a mismatch that a rank reported
    yield from ((s, s.complaint) for s in failed if s.error.get("cause") == "mismatch")
    # Step 2: a signal of another process.  After an error report it is only the end
    # of the interpreter, and NCCL's watchdog aborts a rank if another is lost.
    for s in failed:
        abort = s.exit_code == -signal.SIGABRT and s.aftermath
        if s.signalled and not s.error and not abort:
            yield s, f"was ended by {_signal_name(s)}" + _detail(s)
    # Step 3: an error of its own
    own = (s for s in failed if s.error.get("cause") == "own")
    yield from ((s, f"failed: {s.complaint}") for s in own)
    # Step 4: stopped
    stopped = (s for s in silent if s.stopped)
    yield from ((s, "was stopped by a signal and did not go on") for s in stopped)
    # Step 5: an error that no other rank explains
    unexplained = (s for s in ended if not s.aftermath)
    yield from ((s, _exit(s)) for s in unexplained)
    # Step 6: ended without a report, while the others waited for it
    first = min((s.ended_s for s in failed), default=0.0) + _SAME_MOMENT_S
    early = (s for s in states if s.exit_code == 0 and not s.done)
    yield from (
        (s, "ended early, without an error")
        for s in _by_time(early)
        if s.ended_s <= first
    )
    # Step 7: no response
    for s in sorted(silent, key=lambda s: (s.done, _progress(s), s.changed_s)):
        if s.done:
            yield s, f"did not end{patience}, though it had reported to be done"
        yield s, f"did not answer{patience}"
    # Step 8: only errors about other ranks: the one with the least progress
    least = sorted(ended, key=lambda s: (_progress(s), -s.changed_s))
    yield from ((s, _exit(s)) for s in least)
    yield from ((s, "had to be ended: " + s.complaint) for s in failed)


def _exit(state: RankState) -> str:
    return f"ended with exit code {state.exit_code}" + _detail(state)


def _progress(state: RankState) -> tuple[int, int]:
    """Return the progress of a rank: its stage and number of operations entered."""
    stage = 2 if state.ready else 1 if state.last_event else 0
    return stage, state.entered


def _by_time(states: Iterable[RankState]) -> list[RankState]:
    return sorted(states, key=lambda s: s.ended_s)


def _detail(state: RankState) -> str:
    return f": {state.complaint}" if state.complaint else ""


def _signal_name(state: RankState) -> str:
    number = -(state.exit_code or 0)
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
