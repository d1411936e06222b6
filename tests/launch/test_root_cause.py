"""Of several ranks that fail together, the one that failed first is named."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.launch.root_cause import AFTERMATH, RankState, first_failure

CLOSED = "RuntimeError: [gloo/tcp/pair.cc:547] Connection closed by peer [::1]:5000"
TIMED_OUT = "RuntimeError: Timed out waiting 4000ms for recv operation to complete"


def rank(number: int, **known) -> RankState:
    known.setdefault("ready", True)
    known.setdefault("exit_code", 0)
    known.setdefault("ended_s", 10.0)
    return RankState(rank=number, **known)


def waiting(number: int, entered: int = 7, text: str = TIMED_OUT) -> RankState:
    """A rank that gave up because another did not come."""
    error = {"message": text, "cause": "peer"}
    return rank(number, entered=entered, error=error, exit_code=1)


def blamed(*states: RankState) -> int:
    found = first_failure(states, lambda r, n: f"operation {n}")
    assert found is not None
    return found.rank


def test_no_rank_is_blamed_where_none_failed():
    assert first_failure([rank(0), rank(1)]) is None


def test_a_mismatch_comes_before_a_signal():
    mismatch = {"message": "8 bytes, not 16", "cause": "mismatch"}
    assert (
        blamed(
            rank(0, exit_code=-signal.SIGSEGV, ended_s=1.0),
            rank(1, exit_code=1, error=mismatch, ended_s=2.0),
        )
        == 1
    )


def test_a_signal_after_a_report_is_only_the_interpreters_end():
    aborted = waiting(0)
    aborted.exit_code = -signal.SIGABRT
    killed = rank(1, exit_code=-signal.SIGKILL, entered=7, ended_s=12.0)
    assert blamed(aborted, killed) == 1


def test_a_watchdogs_abort_is_blamed_on_the_rank_it_waited_for():
    watchdog = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL"
    aborted = rank(0, exit_code=-signal.SIGABRT, stderr=(watchdog,), entered=9)
    silent = rank(1, exit_code=-signal.SIGKILL, killed=True, entered=8)
    assert blamed(aborted, silent) == 1


def test_gloos_abort_on_a_wrong_size_is_an_own_failure():
    enforce = "what():  [enforce fail at pair.cc:480] op.preamble.length <= op.nbytes"
    aborted = rank(2, exit_code=-signal.SIGABRT, stderr=(enforce,), entered=7)
    found = first_failure(
        [waiting(0), waiting(1), aborted], lambda r, n: f"operation {n}"
    )
    assert found is not None
    assert (found.rank, found.operation) == (2, "operation 3")
    assert "SIGABRT" in found.reason
    assert "preamble" in found.reason


def test_an_own_error_comes_before_those_who_waited_for_it():
    own = rank(1, exit_code=1, error={"message": "no memory", "cause": "own"})
    hung = rank(2, exit_code=-9, killed=True, entered=3)
    assert blamed(waiting(0), own, hung) == 1


def test_a_traceback_is_believed_before_a_silent_rank():
    crashed = rank(1, exit_code=1, stderr=("ValueError: a bad batch",), entered=7)
    hung = rank(2, exit_code=-9, killed=True, entered=4)
    assert blamed(waiting(0, text=CLOSED), crashed, hung) == 1


def test_a_rank_that_left_early_is_blamed_for_the_time_out_of_others():
    left = rank(0, ended_s=3.0)
    assert blamed(left, waiting(1), waiting(2)) == 0
    left.ended_s = 10.1  # seen to have ended a little later, on a busy host
    assert blamed(left, waiting(1), waiting(2)) == 0
    left.done = True
    assert blamed(left, waiting(1, entered=8), waiting(2)) == 2


def test_of_silent_ranks_the_one_that_came_least_far_is_named():
    states = [
        rank(r, exit_code=-9, killed=True, entered=e, changed_s=c)
        for r, (e, c) in enumerate([(7, 3.0), (6, 4.0), (7, 2.0)])
    ]
    found = first_failure(states, lambda r, n: f"operation {n}", " for 4 s")
    assert found is not None
    assert (found.rank, found.operation) == (1, "operation 3")
    assert found.reason == "did not answer for 4 s"


def test_if_all_only_timed_out_the_last_to_enter_is_named():
    states = [waiting(0), waiting(1), waiting(2)]
    for state, when in zip(states, (1.0, 6.0, 1.1), strict=True):
        state.changed_s = when
    assert blamed(*states) == 1


def test_a_rank_that_was_not_ready_is_behind_one_that_was():
    started = rank(0, exit_code=-9, killed=True, ready=False, last_event="start")
    unseen = rank(1, exit_code=-9, killed=True, ready=False)
    found = first_failure([started, unseen], lambda r, n: f"operation {n}")
    assert found is not None
    assert (found.rank, found.operation) == (1, "start-up")


@pytest.mark.parametrize(
    "text",
    [
        CLOSED,
        TIMED_OUT,
        "Read error [127.0.0.1]:5000: Connection reset by peer",
        "Application timeout caused pair closure",
        "Connection was likely closed. Did the remote server shutdown or crash?",
        "torch.distributed.DistStoreError: wait timeout after 5000ms",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    ],
)
def test_what_torch_says_of_a_missing_peer_is_known(text):
    assert AFTERMATH.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "MemoryError",
        "FileNotFoundError: [Errno 2] No such file or directory: 'run.h5'",
        "[enforce fail at ../gloo/transport/tcp/pair.cc:480] op.preamble.length",
        "ReplayError: the connection of layer 3",
    ],
)
def test_a_ranks_own_failure_is_not_taken_for_anothers(text):
    assert not AFTERMATH.search(text)


@given(
    st.lists(
        st.builds(
            rank,
            st.just(0),
            exit_code=st.sampled_from([0, 1, -6, -9, -11, -99]),
            killed=st.booleans(),
            stopped=st.booleans(),
            done=st.booleans(),
            ready=st.booleans(),
            entered=st.integers(0, 9),
            error=st.sampled_from(
                [{}, {"cause": "own"}, {"cause": "mismatch", "blames": 99}, {"x": 1}]
            ),
            stderr=st.sampled_from([(), (CLOSED,), ("KeyError: 3",)]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_somebody_is_blamed_exactly_when_somebody_failed(states):
    for number, state in enumerate(states):
        state.rank = number
    found = first_failure(states)
    assert (found is not None) == any(s.exit_code for s in states)
    if found is not None:
        assert 0 <= found.rank < len(states)
