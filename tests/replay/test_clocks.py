"""Clocks of hosts that drift are found within the error that is stated."""

from __future__ import annotations

import time

import numpy as np

from moetraffic.capture import clock_offset
from moetraffic.errors import ReplayError
from moetraffic.replay.agree import Meeting
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import CLOCK

AHEAD_NS = 3 * 10**9
DRIFT = 0.05
"""Of the second host's clock: large, so that its change exceeds the error."""


def handshake(rank_env) -> Meeting:
    meeting = Meeting(rank_env, 20.0, time.monotonic())
    meeting.handshake({})
    return meeting


def test_offset_and_drift_of_a_host_are_found_within_their_error(forked, monkeypatch):
    begin = time.monotonic_ns()

    def drifting(now=None):
        since = (time.monotonic_ns() if now is None else now) - begin
        return begin + AHEAD_NS + round((1 + DRIFT) * since)

    def work(rank_env):
        if rank_env.rank:  # two ranks of one other host
            monkeypatch.setattr(clock_offset, "now_ns", drifting)
            monkeypatch.setattr(clock_offset, "identity", lambda: "another clock")
        meeting, found = handshake(rank_env), []
        for moment in ("start", "run 0", "run 1"):
            found += meeting.clocks(moment).tolist()
            time.sleep(0.3)
        return found

    first, *others = forked(3, work)
    assert others == [[], []]
    knots = np.array([tuple(row) for row in first], CLOCK)
    assert knots["rank"].tolist() == [0, 1, 2] * 3
    assert not knots[knots["rank"] == 0]["offset_ns"].any()
    measured, copied = (knots[knots["rank"] == r] for r in (1, 2))
    names = ["local_ns", "offset_ns", "error_ns"]
    assert (measured[names] == copied[names]).all()  # one measurement for each host
    local, offset, error = (measured[name] for name in names)
    elsewhere = begin + (local - begin - AHEAD_NS) / (1 + DRIFT)
    assert (np.abs(offset - (elsewhere - local)) <= error).all()
    # the drift is seen: it exceeds the error
    assert error.max() < abs(offset[-1] - offset[0]) / 2
    # and at any time between
    ends = elsewhere[[0, -1]].astype(int).tolist()
    now = np.linspace(ends[0] + 10, ends[1] - 10, 50).astype(np.int64)[:, None]
    own = np.array([[drifting(t)] for t in now[:, 0].tolist()])
    common = to_common(knots, np.ones_like(own), own)
    assert (np.abs(common - now) <= error.max()).all()


def test_a_host_whose_clock_cannot_be_read_is_refused(forked, monkeypatch):
    def work(rank_env):
        if rank_env.rank:
            monkeypatch.setattr(clock_offset, "identity", lambda: "another clock")
            monkeypatch.setattr(clock_offset, "ask", unreachable)
        meeting = handshake(rank_env)
        try:
            meeting.clocks("start")
        except ReplayError as error:
            return str(error)

    def unreachable(*_):
        raise ConnectionRefusedError

    refused, _ = forked(2, work)
    assert "rank 1 at the measurement of clocks and rank 0 could not" in refused
