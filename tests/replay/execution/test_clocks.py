"""Clocks of ranks that drift are found within the error that is stated."""

from __future__ import annotations

import time

import numpy as np
from torch.distributed import TCPStore

from moetraffic.capture import clock_offset
from moetraffic.replay import make_plan
from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.execution.control import gather_clocks
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import CLOCK

AHEAD_NS = 3 * 10**9
DRIFT = 0.05
"""Of rank 1's clock: large, so that its change exceeds the error on a busy machine."""


def test_offset_and_drift_of_a_clock_are_found_within_their_error(
    toy, forked, monkeypatch
):
    plan = make_plan(toy(), ranks=())
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    begin = time.monotonic_ns()

    def drifting(now=None):
        since = (time.monotonic_ns() if now is None else now) - begin
        return begin + AHEAD_NS + round((1 + DRIFT) * since)

    def work(rank_env):
        rank = rank_env.rank
        store = TCPStore("127.0.0.1", server.port, is_master=False)
        if rank == 1:
            monkeypatch.setattr(clock_offset, "now_ns", drifting)
            monkeypatch.setattr(clock_offset, "identity", lambda: "another clock")
        moves = Backend()
        moves.start(rank_env, (*plan.used_groups, (0, 1)), 30.0)
        found = []
        for moment in ("start", "run 0", "run 1"):
            found.append(gather_clocks(plan, rank, moves, store, moment).tolist())
            time.sleep(0.3)
        moves.stop()
        return found

    of_first, of_second = forked(2, work)
    assert of_second == [[], [], []]
    clocks = np.array([c for rows in of_first for c in rows], CLOCK)
    assert clocks["rank"].tolist() == [0, 1] * 3
    assert not clocks[clocks["rank"] == 0]["offset_ns"].any()
    knots = clocks[clocks["rank"] == 1]
    local, offset, error = (knots[n] for n in ("local_ns", "offset_ns", "error_ns"))
    elsewhere = begin + (local - begin - AHEAD_NS) / (1 + DRIFT)
    assert (np.abs(offset - (elsewhere - local)) <= error).all()
    # the drift is seen: it exceeds the error
    assert error.max() < abs(offset[-1] - offset[0]) / 2
    # and at any time between
    first, last = elsewhere[[0, -1]].astype(int).tolist()
    now = np.linspace(first + 10, last - 10, 50).astype(np.int64)[:, None]
    own = np.array([[drifting(t)] for t in now[:, 0].tolist()])
    common = to_common(clocks, np.ones_like(own), own)
    assert (np.abs(common - now) <= error.max()).all()
