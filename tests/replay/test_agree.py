"""What ranks agree on through the store, before and after the backend moves bytes."""

from __future__ import annotations

import time

import numpy as np
import pytest

from moetraffic.errors import ReplayError
from moetraffic.replay import agree
from moetraffic.replay.agree import Meeting, check_equal
from moetraffic.replay.failure import RankError


@pytest.fixture
def meeting():
    """Meet the other ranks of a fork."""
    return lambda rank_env: Meeting(rank_env, 20.0, time.monotonic())


def test_arrays_are_gathered_in_blocks_of_ranks_and_bytes(forked, meeting, monkeypatch):
    monkeypatch.setattr(agree, "GATHERED", 2)
    monkeypatch.setattr(agree, "CHUNK_BYTES", 100)

    def work(rank_env):
        met = meeting(rank_env)
        own = np.full((30 * rank_env.rank, 3), rank_env.rank, np.int64)
        found = [met.gather(f"times {n}", own) for n in range(2)]
        met.answer("end", str)
        time.sleep(0.5)  # rank 0 serves the store
        return [[[*rows.shape, int(rows.sum())] for rows in each] for each in found]

    first, *others = forked(5, work)
    assert first == [[[30 * r, 3, 90 * r * r] for r in range(5)]] * 2
    assert others == [[[], []]] * 4


def test_what_rank_0_finds_or_refuses_all_ranks_hear(forked, meeting):
    def work(rank_env):
        met = meeting(rank_env)
        said = met.answer("question", lambda: "42")

        def refuse():
            error = RankError("has nothing", rank=2, operation="the end")
            met.claim(error)
            raise error

        try:
            met.answer("another question", refuse)
        except ReplayError as error:
            time.sleep(0.5)
            return [said, str(error)]

    assert forked(3, work) == [["42", "rank 2 at the end has nothing"]] * 3


def test_hosts_are_known_and_their_ranks_share_a_board(forked, meeting):
    def work(rank_env):
        rank, met = rank_env.rank, meeting(rank_env)
        agree.platform.node = lambda: f"host {rank // 2}"
        hosts = met.handshake({"a": "1"})
        agree.own().note(f"place {rank}")
        met.gather("end", np.zeros(1))
        met.answer("all", str)
        places = agree.own().board.rows["place"]
        time.sleep(0.5)
        return [hosts, sorted(met.pids), [p.decode() for p in places if p]]

    hosts = ["host 0", "host 0", "host 1"]
    assert forked(3, work) == [
        [hosts, [1], ["place 0", "place 1"]],
        [hosts, [0], ["place 0", "place 1"]],
        [hosts, [], ["place 2"]],
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([{"a": "1"}, {"a": "2"}, {"a": "1"}], "rank 1 .*has a 2, while rank 0 has 1"),
        ([{"a": "2"}, {"a": "1"}, {"a": "1"}], "rank 0 .*has a 2, while rank 1 has 1"),
        ([{"a": "1"}, {}], "rank 1 .*has a none"),
        ([{"plan": p} for p in "xyx"], "rank 1 .*has another plan than rank 0: give"),
    ],
)
def test_a_setting_that_differs_from_most_is_named(settings, said):
    check_equal(settings[:1] * 3)
    with pytest.raises(RankError, match=said):
        check_equal(settings)
