"""A rescaled trace is a trace: bytes, times, order and presence of the mapped ranks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.replay import make_plan
from moetraffic.trace import Group, Meta, Occurrences, Program, Site, Steps, Trace
from moetraffic.trace.model import UNKNOWN_TIME, WireForm
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.rescaling import Scaling, TraceScale, rescale
from moetraffic.trace.rescaling.rank_map import explicit, identity_map
from moetraffic.trace.rescaling.rescaled_trace import rescaled
from tests.replay.conftest import make_trace


def test_rank_for_rank_nothing_changes():
    trace = make_trace(world=4, groups=[(0, 2), (3, 1)])
    same = make_plan(rescaled(TraceScale(trace, identity_map(4))))
    plan = make_plan(trace)
    for rank, program in plan.programs.items():
        for name, values in vars(program).items():
            np.testing.assert_array_equal(values, getattr(same.programs[rank], name))
    assert same.checksum.tolist() == plan.checksum.tolist()


places = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=6, max_size=6)


@given(where=places, seed=st.integers(0, 9), factor=st.sampled_from((1, 3)))
@settings(max_examples=10, deadline=None)
def test_bytes_and_times_are_those_of_the_ranks_on_each(where, seed, factor):
    used = sorted({new for new in where if new is not None})
    where = [None if new is None else used.index(new) for new in where]
    if not used:
        where[0] = 0
    trace = make_trace(
        world=6, groups=[(0, 2, 4), (5, 3, 1)], iterations=(0, 2), seed=seed
    )
    rng = np.random.default_rng(seed)
    late = {w: rng.integers(0, 10**9, trace.panels[f"end_{w}"].shape) for w in (3, 6)}
    trace = trace.replace(issue=late, end={w: t + 7 for w, t in late.items()})
    scale = TraceScale(trace, explicit(6, where), factor=Fraction(factor))
    made = rescaled(scale)
    for number, site in enumerate(made.sites):
        at = np.flatnonzero(made.occurrences.site == number)
        old = [
            n
            for n, s in enumerate(trace.sites)
            if (s.group, s.layer, s.phase, s.label)
            == (site.group, site.layer, site.phase, site.label)
        ]
        source = np.flatnonzero(trace.occurrences.site == old[0])
        ranks, members = made.groups[site.group].ranks, trace.members(source)[0]
        issue, _, end = made.times(at)
        old_issue, _, old_end = trace.times(source)
        for column, new in enumerate(ranks):
            mine = [i for i, r in enumerate(members) if where[r] == new]
            np.testing.assert_array_equal(
                issue[:, column], old_issue[:, mine].min(axis=1)
            )
            np.testing.assert_array_equal(end[:, column], old_end[:, mine].max(axis=1))
            if site.operation != "all_to_all":
                continue
            for other, target in enumerate(ranks):
                theirs = [i for i, r in enumerate(members) if where[r] == target]
                block = trace.wire(source)[:, mine][:, :, theirs].sum(axis=(1, 2))
                np.testing.assert_array_equal(
                    made.wire(at)[:, column, other], block * factor
                )
    kept = {r for r in range(6) if where[r] is not None}
    gone = [g for g in trace.groups if not kept & set(g.ranks)]
    left = sum(
        trace.groups[trace.sites[s].group] in gone for s in trace.occurrences.site
    )
    assert scale.ledger.operations_left_out == left


def test_it_can_be_saved_and_is_planned_the_same(tmp_path):
    trace = make_trace(world=4, groups=[(0, 1), (2, 3)])
    made = rescale(trace, Scaling(fold="2:strided"))
    made.save(tmp_path / "folded.h5")
    with Trace.open(tmp_path / "folded.h5") as found:
        assert found.meta.world == 2
        again, plan = make_plan(found, in_common=True), make_plan(made, in_common=True)
        assert (again.checksum == plan.checksum).all()
        for rank, program in plan.programs.items():
            theirs = again.programs[rank].operation
            assert theirs.tolist() == program.operation.tolist()


def test_a_record_is_missing_where_one_of_the_ranks_has_none():
    trace = make_trace(world=4, absent=[(3, 1)])
    made = rescale(trace, Scaling(fold="2"))
    at = made.find(phase="dispatch", kind=None)
    gone = made.occurrences.iteration[at] == 1
    np.testing.assert_array_equal(made.present(at)[:, 0], True)
    np.testing.assert_array_equal(made.present(at)[:, 1], ~gone)
    whole = rescale(trace, Scaling(fold="2", missing="mean"))
    assert whole.present(at).all()


def pipeline() -> Trace:
    """Four ranks: each sends the next one a message and gets one back."""
    pairs = [(r, r + 1) for r in range(3)] + [(r + 1, r) for r in range(3)]
    sites = [
        Site(
            group=0,
            operation="send_recv",
            peers=p,
            wire=WireForm.CONSTANT,
            constant=tuple(9 * (r == p[0]) for r in range(4)),
        )
        for p in pairs
    ]
    present = np.zeros((6, 4), np.uint8)
    for row, pair in enumerate(pairs):
        present[row, list(pair)] = 1
    unknown = np.full((6, 4), UNKNOWN_TIME)
    return Trace(
        meta=Meta(world=4, pp=4, dp=1),
        groups=[Group(kind="pp", ranks=(0, 1, 2, 3))],
        sites=sites,
        occurrences=Occurrences(
            iteration=np.zeros(6, np.int64),
            site=np.arange(6, dtype=np.int32),
            sequence=np.full(6, -1),
        ),
        panels={
            "present_4": ArrayPanel(present),
            **{f"{n}_4": ArrayPanel(unknown) for n in ("issue", "start", "end")},
        },
        steps=Steps(
            iteration=np.zeros(1, np.int64),
            kind=("train",),
            loss=np.array([[1.0, 2.0, 3.0, 4.0]]),
            tokens=np.full((1, 4), 8),
            start=np.full((1, 4), UNKNOWN_TIME),
            end=np.full((1, 4), UNKNOWN_TIME),
        ),
        programs=[
            Program(
                rank=r,
                kind="train",
                sites=tuple(n for n, p in enumerate(pairs) if r in p),
            )
            for r in range(4)
        ],
    )


def test_messages_go_between_the_ranks_that_carry_their_ends():
    made = rescale(pipeline(), Scaling(fold="2"))
    sent = [
        (made.sites[s].peers, made.volume(np.array([n]))[0].tolist())
        for n, s in enumerate(made.occurrences.site)
    ]
    inside, ahead, back = ((0, 0), [9, 0]), ((0, 1), [9, 0]), ((1, 0), [0, 9])
    last = ((1, 1), [0, 9])
    assert sent == [inside, ahead, last, inside, back, last]
    assert made.steps.loss.tolist() == [[1.5, 3.5]]
    assert made.steps.tokens.tolist() == [[16, 16]]
    assert [p.sites for p in made.programs] == [(0, 1, 3, 4), (1, 2, 4, 5)]
    scale = TraceScale(pipeline(), explicit(4, [0, None, 1, 2]))
    few = rescaled(scale)
    assert [few.sites[s].peers for s in few.occurrences.site] == [(1, 2), (2, 1)]
    assert scale.ledger.operations_left_out == 4
    plan = make_plan(few)
    assert (plan.sender.tolist(), plan.receiver.tolist()) == ([1, 2], [2, 1])


def test_the_digest_covers_times_which_order_the_operations_at_every_pace():
    trace = make_trace(world=2)
    issue = np.array(trace.panels["issue_2"].read(0, len(trace.occurrences)))
    issue[3, 1] -= 1
    other = trace.replace(issue={2: issue})
    one, two = (make_plan(t, ranks=()).digest for t in (trace, other))
    assert one != two
    renamed = trace.replace(meta=replace(trace.meta, model="other"))
    assert make_plan(renamed).digest == one
