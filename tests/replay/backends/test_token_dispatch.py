"""The DeepEP backend against a stand-in of its public signatures, on gloo."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from moetraffic.errors import ReplayError
from moetraffic.replay import local
from moetraffic.replay.backends import choice
from moetraffic.replay.backends.choice import backend
from moetraffic.replay.backends.process_groups import Gloo
from moetraffic.replay.backends.token_dispatch import TokenDispatch
from moetraffic.replay.execution.engine import Engine
from moetraffic.replay.plan.planning import make_plan
from moetraffic.replay.plan.selection import Depth, Verification
from moetraffic.replay.plan.token_rows import TokenRouting
from moetraffic.replay.request import Request
from moetraffic.trace.dispatchers import redispatch
from moetraffic.trace.rescaling import Scaling
from tests.replay.backends import deep_ep_stand_in
from tests.trace.test_dispatchers import EXPERTS, routed

NONE = Verification(depth=Depth.NONE)


class OnGloo(TokenDispatch, Gloo):
    pass


@pytest.fixture
def installed(monkeypatch):
    deep_ep_stand_in.CALLS.clear()
    monkeypatch.setitem(sys.modules, "deep_ep", deep_ep_stand_in)
    monkeypatch.setattr(choice, "DeepEp", OnGloo)
    monkeypatch.setattr(local, "validate_device", lambda _: None)  # it has no device


def wide_rows(seed, k):
    """Rows of 16 bytes, as DeepEP requires."""
    trace, masks = routed(seed, k=k)
    sites = [replace(s, row_bytes=2 * s.row_bytes) for s in trace.sites]
    return trace.replaced(sites=sites), masks


@pytest.mark.parametrize("k", [1, 3])
def test_rows_of_each_phase_arrive_as_planned(installed, forked, k):
    """The backend compares the rows that arrive with the plan's bytes."""
    trace, _ = wide_rows(4, k)

    def work(rank_env):
        plan = make_plan(redispatch(trace, "by-rank"), in_common=True)
        moves = OnGloo()
        everyone = tuple(range(4))
        moves.start(rank_env, (*plan.used_groups, everyone), 20.0)
        routing = TokenRouting(trace, plan, rank_env.rank)
        Engine(plan, rank_env.rank, moves, tokens=routing.rows).run()
        moves.stop()
        return dict(deep_ep_stand_in.CALLS)

    exchanges = 2  # iterations, of one layer
    assert forked(4, work) == 4 * [
        {
            "Buffer": 1,
            "get_dispatch_layout": exchanges,
            "dispatch": exchanges,
            "combine": exchanges,
            "dispatch by handle": exchanges,
            "combine with weights": exchanges,
        }
    ]


def test_experts_of_tokens_are_the_sampled_ones(installed):
    trace, masks = routed(6, k=3)
    plan = make_plan(redispatch(trace, "by-rank"))
    for rank in range(4):
        routing = TokenRouting(trace, plan, rank)
        for at in range(len(plan)):
            found = routing.rows(at)
            assert (found is None) == (not plan.sites[plan.site[at]].phase)
            if found is None:
                continue
            of_tokens = masks[plan.iteration[at], rank]
            assert [sorted(row) for row in found.experts.tolist()] == [
                np.flatnonzero(row).tolist() for row in of_tokens
            ]
            assert found.count == EXPERTS


@pytest.mark.slow  # starts ranks
def test_a_whole_replay_by_deep_ep(installed, replay_with, tmp_path):
    trace, masks = wide_rows(1, 3)
    trace.save(tmp_path / "routed.h5")
    summary = replay_with(
        tmp_path / "routed.h5",
        backend="deep_ep",
        verify=NONE,
        scaling=Scaling(dispatcher="by-rank"),
    )
    # each token once for each other rank, in four phases
    on = masks.reshape(2, 4, -1, 4, EXPERTS // 4).any(axis=-1).sum(axis=2)
    other = int(on.sum() - np.trace(on, axis1=1, axis2=2).sum())
    counts = 2 * 12 * EXPERTS // 4 * 8  # of tokens, before each dispatch
    assert summary.network_bytes == 4 * 16 * other + counts


def test_a_sample_of_some_tokens_is_refused(installed):
    trace, _ = routed(0, sampled=False)
    plan = make_plan(redispatch(trace, "plain"))
    first = [bool(plan.sites[s].phase) for s in plan.site].index(True)
    routing = TokenRouting(trace, plan, 0)
    with pytest.raises(ReplayError, match="capture with --token-sample of all tokens"):
        routing.rows(first)


def test_without_deep_ep_the_remedy_is_named(forked, monkeypatch):
    monkeypatch.setitem(sys.modules, "deep_ep", None)
    said = forked(1, lambda rank_env: OnGloo().start(rank_env, ((0,),), 5.0))
    assert "use --backend nccl, whose all-to-alls send the same rows" in str(said[0])
    if not torch.cuda.is_available():
        assert backend("deep_ep").name == "nccl"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"verify": NONE}, "--dispatcher by-rank"),
        ({"scaling": Scaling(dispatcher="by-rank")}, "--verify none"),
        (
            {"verify": NONE, "scaling": Scaling(dispatcher="by-rank", fold="2")},
            "on the captured ranks and bytes",
        ),
        (
            {
                "verify": NONE,
                "graphs": True,
                "scaling": Scaling(dispatcher="by-rank"),
            },
            "without --graphs",
        ),
    ],
)
def test_what_deep_ep_cannot_replay_is_refused(tmp_path, options, says):
    with pytest.raises(ReplayError, match=says):
        Request(trace=tmp_path / "any.h5", backend="deep_ep", **options)
