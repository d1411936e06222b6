"""Of several ranks that fail together, the one that failed first is named."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.launch.blame import AFTERMATH, RankEnd, first_failure
from moetraffic.launch.board import ROW, Cause, State

CLOSED = "RuntimeError: [gloo/tcp/pair.cc:547] Connection closed by peer [::1]:5000"
TIMED_OUT = "RuntimeError: Timed out waiting 4000ms for recv operation to complete"
SEGMENT, KILLED, ABORTED = -signal.SIGSEGV, -signal.SIGKILL, -signal.SIGABRT


def rank(
    number: int,
    code: int | None = 0,
    process: str = "ended",
    ended_s: float = 10.0,
    stderr: tuple[str, ...] = (),
    **fields: Any,
) -> RankEnd:
    row = np.zeros(1, ROW)
    for name, value in {"state": State.READY, "blames": number, **fields}.items():
        row[name] = value
    return RankEnd(number, row[0], process, code, ended_s, stderr)


def failed(number: int, cause: Cause, message: str = TIMED_OUT, **known) -> RankEnd:
    known = {"code": 1, "position": 7, **known}
    return rank(number, state=State.FAILED, cause=cause, message=message, **known)


def waiting(number: int, **known) -> RankEnd:
    """A rank that gave up because another did not come."""
    return failed(number, Cause.PEER, **known)


def silent(number: int, process: str = "running", **known) -> RankEnd:
    """A rank that had to be killed."""
    return rank(number, None, process, float("inf"), **known)


ABORT = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL"
CASES = {
    "a mismatch before a signal": (
        [rank(0, SEGMENT, ended_s=1.0), failed(1, Cause.MISMATCH, "8 bytes, not 16")],
        "rank 1 at operation 3 8 bytes, not 16",
    ),
    "a mismatch that another rank finds": (
        [failed(0, Cause.MISMATCH, "has 2", blames=1, place="start-up"), rank(1)],
        "rank 1 at start-up has 2",
    ),
    "a signal after a report is only the interpreter's end": (
        [waiting(0, code=ABORTED), rank(1, KILLED, position=7)],
        "rank 1 at operation 3 was ended by SIGKILL",
    ),
    "a watchdog's abort by the rank it waited for": (
        [rank(0, ABORTED, stderr=(ABORT,), position=9), silent(1, position=8)],
        "rank 1 at operation 4 did not answer",
    ),
    "gloo's abort on a wrong size": (
        [
            waiting(0),
            rank(2, ABORTED, stderr=("[enforce fail] op.preamble",), position=7),
        ],
        "rank 2 at operation 3 was ended by SIGABRT: [enforce fail] op.preamble",
    ),
    "without exit codes": (
        [waiting(0, code=None, process="running"), rank(1, None, position=5)],
        "rank 1 at operation 2 ended without an error report: it was killed, or "
        "crashed",
    ),
    "an own error before those who waited for it": (
        [waiting(0), failed(1, Cause.OWN, "no memory"), silent(2, position=3)],
        "rank 1 at operation 3 failed: no memory",
    ),
    "a stopped rank before those who waited for it": (
        [waiting(0), silent(1, "stopped", position=7), waiting(2)],
        "rank 1 at operation 3 was stopped by a signal and did not go on",
    ),
    "an exit that no other rank explains": (
        [rank(0, 1, stderr=(CLOSED,)), rank(1, 1, stderr=("KeyError: 3",), position=4)],
        "rank 1 at operation 2 ended with exit code 1: KeyError: 3",
    ),
    "who left early, though seen a little later": (
        [rank(0, ended_s=10.1), waiting(1), waiting(2)],
        "rank 0 at operation 0 ended early, without an error",
    ),
    "not who had done everything": (
        [rank(0, state=State.DONE, position=9), waiting(1, position=8), waiting(2)],
        "rank 2 at operation 3 " + TIMED_OUT,
    ),
    "of silent ranks the one with the least progress": (
        [silent(0, position=7), silent(1, position=6), silent(2, position=7)],
        "rank 1 at operation 3 did not answer",
    ),
    "of ranks that timed out the last to enter": (
        [waiting(0, time_ns=1), waiting(1, time_ns=6), waiting(2, time_ns=2)],
        "rank 1 at operation 3 " + TIMED_OUT,
    ),
    "one that was not ready is behind one that was": (
        [silent(0), silent(1, state=State.STARTING)],
        "rank 1 at start-up did not answer",
    ),
}


@pytest.mark.parametrize(("ends", "said"), CASES.values(), ids=CASES.keys())
def test_the_first_failure_is_named(ends, said):
    assert str(first_failure(ends, lambda rank, n: f"operation {n}")) == said


def test_no_rank_is_blamed_where_none_failed():
    assert first_failure([rank(0), rank(1)]) is None


@pytest.mark.parametrize(
    ("text", "aftermath"),
    [
        (CLOSED, True),
        (TIMED_OUT, True),
        ("Read error [127.0.0.1]:5000: Connection reset by peer", True),
        ("Application timeout caused pair closure", True),
        ("Connection was likely closed. Did the remote server shutdown?", True),
        ("torch.distributed.DistStoreError: wait timeout after 5000ms", True),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", True),
        ("MemoryError", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'run.h5'", False),
        ("[enforce fail at pair.cc:480] op.preamble.length", False),
        ("ReplayError: the connection of layer 3", False),
    ],
)
def test_what_torch_says_of_a_missing_peer(text, aftermath):
    assert bool(AFTERMATH.search(text)) == aftermath


@given(
    st.lists(
        st.builds(
            rank,
            st.just(0),
            code=st.sampled_from([0, 1, -6, -9, -11, -99]),
            state=st.sampled_from(list(State)),
            position=st.integers(0, 9),
            cause=st.sampled_from(list(Cause)),
            stderr=st.sampled_from([(), (CLOSED,), ("KeyError: 3",)]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_somebody_is_blamed_where_somebody_failed(ends):
    if any(end.exit_code for end in ends):
        assert first_failure(ends) is not None
