"""On other ranks, with other bytes: what is conserved, and what stays transposed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.errors import ReplayError
from moetraffic.replay import operations, programs
from moetraffic.trace import Group, Meta, Occurrences, Site, Steps, Trace
from moetraffic.trace.model import PHASES, TRANSPOSED_PHASES, UNKNOWN_TIME, Presence
from moetraffic.trace.order import common_order, merged
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.what_if.missing import completed
from moetraffic.trace.what_if.rank_map import rank_map
from moetraffic.trace.what_if.rescale import (
    Scaling,
    factor_of,
    multiplied,
    rescale,
    rescaled,
    share,
)
from tests.replay.conftest import make_trace
from tests.timed import with_times

RANKS = 64


@pytest.fixture(scope="module")
def wide():
    """64 ranks that route to 128 experts; rows are of 64 bytes."""
    rng = np.random.default_rng(0)
    popular = rng.dirichlet(np.full(2 * RANKS, 0.2))
    return Trace.from_arrays(rng.multinomial(60, popular, (2, 2, RANKS)), row_bytes=64)


def exchanges(trace: Trace):
    """Bytes of each phase, ``[n, R, R]``, layer by layer."""
    return {
        phase: np.concatenate(
            [trace.wire(trace.find(phase=phase, layer=n)) for n in trace.layers]
        )
        for phase in PHASES
    }


def refuse_untransposed(matrices):
    for phase, wire in matrices.items():
        turned = wire.transpose(0, 2, 1) if phase in TRANSPOSED_PHASES else wire
        np.testing.assert_array_equal(turned, matrices["dispatch"])


def listed(where):
    """A rank map as text."""
    return ",".join("-" if new is None else str(new) for new in where)


def totals(made, ledger):
    """What the ledger has of all all-to-alls, by name."""
    names = ("captured", "captured_inside", "completed", "lost", "sent", "inside")
    calls = np.flatnonzero(made.square[made.occurrences.site])
    return dict(zip(names, ledger.total(calls), strict=True))


# ---- fewer ranks -----------------------------------------------------------------


def test_64_ranks_folded_on_4_move_exactly_the_sums_of_their_blocks(wide):
    made, ledger = rescaled(wide, Scaling(fold="4"))
    assert made.meta.world == 4
    for phase, wire in exchanges(wide).items():
        blocks = wire.reshape(len(wire), 4, 16, 4, 16).sum(axis=(2, 4))
        np.testing.assert_array_equal(exchanges(made)[phase], blocks)
    calls = made.find(operation="all_to_all")
    sent = int(made.wire(calls).sum())
    found = totals(made, ledger)
    every = wide.find(operation="all_to_all")
    assert found["captured"] == found["sent"] == sent == wide.wire(every).sum()
    assert found["inside"] > found["captured_inside"]
    lines = ledger.lines(calls)
    assert lines[0] == "scale: 64 ranks onto 4; --fold 4"
    assert not any("lost" in line or " 0 B" in line for line in lines)


places = st.lists(
    st.one_of(st.none(), st.integers(0, 5)), min_size=RANKS, max_size=RANKS
)


def without_gaps(where):
    used = sorted({new for new in where if new is not None})
    return [None if new is None else used.index(new) for new in where]


@given(where=places, self_traffic=st.booleans(), factor=st.sampled_from((1, 10, 3)))
def test_any_map_conserves_bytes_and_keeps_phases_transposed(
    wide, where, self_traffic, factor
):
    where = without_gaps(where)
    if all(new is None for new in where):
        where[0] = 0
    made, ledger = rescaled(
        wide,
        Scaling(
            rank_map=listed(where),
            self_traffic=self_traffic,
            factor=Fraction(1, factor),
        ),
    )
    found = exchanges(made)
    refuse_untransposed(found)
    sent = int(made.wire(made.find(operation="all_to_all")).sum())
    ledger = totals(made, ledger)
    exact = Fraction(ledger["captured"] - ledger["lost"], factor)
    assert ledger["sent"] == sent
    assert abs(sent - exact) < 16 * 5 * found["dispatch"].size
    if not self_traffic:
        assert all(np.trace(w, axis1=1, axis2=2).sum() == 0 for w in found.values())
    # each block by hand
    first = exchanges(wide)["dispatch"][0]
    for a in range(made.meta.world):
        for b in range(made.meta.world):
            of_a = [r for r, new in enumerate(where) if new == a]
            of_b = [r for r, new in enumerate(where) if new == b]
            block = int(first[np.ix_(of_a, of_b)].sum())
            want = 16 * max(1, (2 * block // 16 + factor) // (2 * factor))
            here = found["dispatch"][0, a, b]
            kept = block > 0 and (a != b or self_traffic)
            assert here == (want if kept else 0)


def test_a_choice_of_ranks_keeps_what_they_send_each_other(wide):
    made, ledger = rescaled(wide, Scaling(ranks="3,10:12,63"))
    keep = [3, 10, 11, 63]
    for phase, wire in exchanges(wide).items():
        np.testing.assert_array_equal(exchanges(made)[phase], wire[:, keep][:, :, keep])
    assert totals(made, ledger)["lost"] > 0


def test_ranks_of_a_node_meet():
    meta = Meta(world=3, nodes=("b", "a", "b"))
    assert rank_map(meta, "fold", "nodes") == ((0,), (1,), (0,))
    with pytest.raises(ReplayError, match="needs the node of every rank"):
        rank_map(Meta(world=2), "fold", "nodes")


# ---- more ranks ------------------------------------------------------------------


@given(
    parts=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    seed=st.integers(0, 1000),
    largest=st.integers(1, 50),
)
def test_shares_sum_to_what_they_share_and_differ_by_one(parts, seed, largest):
    cells = np.random.default_rng(seed).integers(0, largest, (2, 3, 3))
    parts = np.array(parts)
    begins = np.cumsum(parts) - parts
    columns = share(cells, parts)
    made = share(columns.transpose(0, 2, 1), parts).transpose(0, 2, 1)
    blocks = np.add.reduceat(np.add.reduceat(made, begins, axis=1), begins, axis=2)
    np.testing.assert_array_equal(blocks, cells)
    for begin, end in zip(begins.tolist(), (begins + parts).tolist(), strict=True):
        rows = made[:, begin:end]
        # the whole rows, not only the cells
        assert np.ptp(rows.sum(axis=2), axis=1).max() <= 1
        assert np.ptp(rows, axis=1).max() <= 1


def test_64_ranks_spread_over_128_move_the_same_bytes(wide):
    made, ledger = rescaled(wide, Scaling(expand="128"))
    found = exchanges(made)
    refuse_untransposed(found)
    for phase, wire in exchanges(wide).items():
        blocks = found[phase].reshape(len(wire), RANKS, 2, RANKS, 2).sum(axis=(2, 4))
        np.testing.assert_array_equal(blocks, wire)
    ledger = totals(made, ledger)
    assert ledger["captured"] == ledger["sent"]
    assert ledger["inside"] < ledger["captured_inside"]


# ---- bytes -----------------------------------------------------------------------


@given(
    nbytes=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5),
    p=st.integers(1, 60),
    q=st.integers(1, 1000),
)
def test_bytes_are_multiplied_to_the_nearest_byte_or_16_bytes(nbytes, p, q):
    factor = Fraction(p, q)
    for before, after in zip(
        nbytes, multiplied(np.array(nbytes), factor).tolist(), strict=True
    ):
        unit = 1 if before % 16 else 16
        assert after % unit == 0
        assert (after > 0) is (before > 0)
        error = before * factor - after
        assert abs(error) <= Fraction(unit, 2) or (after == unit > before * factor)
        if error == Fraction(unit, 2):
            raise AssertionError("halves go up")


@pytest.mark.parametrize(
    "scaling",
    [
        Scaling(fold="3", factor=Fraction(1, 3)),
        Scaling(fold="16:strided", factor=Fraction(7, 1000)),
        Scaling(expand="96"),
        Scaling(expand="128", factor=Fraction(1, 10)),
        Scaling(ranks="0,5:9", factor=Fraction(3, 7)),
    ],
    ids=str,
)
def test_offsets_in_buffers_stay_aligned(wide, scaling):
    # every cell, and so every offset, is a multiple of 16 bytes
    for wire in exchanges(rescale(wide, scaling)).values():
        assert len(wire)
        for axis in (1, 2):
            assert not (np.cumsum(wire, axis=axis) % 16).any()


def test_factors_are_read_exactly():
    assert factor_of("x0.1") == Fraction(1, 10)
    assert factor_of("x1/3") == Fraction(1, 3)
    for text in ("0.1", "1/8", "x0", "x-1", "1e9", "x0.0000001", "x1/0", "nan", ""):
        with pytest.raises(ReplayError, match="for a tenth"):
            factor_of(text)
    with pytest.raises(ReplayError, match="lower --bytes"):
        multiplied(np.array([1 << 46]), Fraction(2))


# ---- other collectives -----------------------------------------------------------


def calls_of(sites, rows, *, column="volume", present=None, times=None):
    """One iteration of calls of one group, with bytes ``rows`` and times, if any."""
    rows = np.array(rows)
    count, width = rows.shape[:2]
    here = np.full((count, width), Presence.RECORDED, np.uint8)
    clock = np.full((count, width), UNKNOWN_TIME)
    unknown = np.full((1, width), UNKNOWN_TIME)
    return Trace(
        meta=Meta(world=width, dp=1),
        groups=[Group(kind="ep", ranks=tuple(range(width)))],
        sites=sites,
        occurrences=Occurrences(
            iteration=np.zeros(count, np.int64),
            site=np.arange(count, dtype=np.int32),
            sequence=np.full(count, -1),
            matrix=np.arange(count),
            transposed=np.zeros(count, bool),
        ),
        panels={
            f"call_{width}/{column}": ArrayPanel(rows),
            f"call_{width}/present": ArrayPanel(here if present is None else present),
            **{
                f"call_{width}/{name}": ArrayPanel(clock)
                for name in ("issue", "start", "end")
            },
        },
        steps=Steps(
            iteration=np.zeros(1, np.int64),
            kind=("train",),
            loss=np.arange(1.0, width + 1)[None],
            tokens=np.full((1, width), 8),
            start=unknown,
            end=unknown,
            source=np.zeros(1, np.uint8),
        ),
    )


def test_what_all_have_stays_and_what_each_has_adds_up():
    kinds = ("all_gather", "all_reduce", "reduce_scatter")
    rows = [[10, 20, 30, 40], [64] * 4, [64] * 4]
    trace = calls_of([Site(group=0, operation=kind) for kind in kinds], rows)
    half = rescale(trace, Scaling(fold="2"))
    assert half.volume(np.arange(3)).tolist() == [[30, 70], [64, 64], [64, 64]]
    more = rescale(trace, Scaling(expand="8")).volume(np.arange(3))
    assert more.sum(axis=1).tolist() == [100, 8 * 64, 8 * 64]
    assert more[:, :2].tolist() == [[5, 5], [64, 64], [64, 64]]


def pipeline() -> Trace:
    """Four ranks: each sends the next one a message and gets one back."""
    pairs = [(r, r + 1) for r in range(3)] + [(r + 1, r) for r in range(3)]
    present = np.zeros((6, 4), np.uint8)
    for row, pair in enumerate(pairs):
        present[row, list(pair)] = 1
    sites = [Site(group=0, operation="send_recv", peers=pair) for pair in pairs]
    rows = [[9 * (rank == sender) for rank in range(4)] for sender, _ in pairs]
    return calls_of(sites, rows, present=present)


def test_messages_go_between_the_ranks_that_carry_their_ends():
    made = rescale(pipeline(), Scaling(fold="2"))
    sent = [(s.peers, made.volume(np.array([n]))[0]) for n, s in enumerate(made.sites)]
    assert sorted((peers, row.tolist()) for peers, row in sent) == [
        *[((0, 0), [9, 0])] * 2,
        ((0, 1), [9, 0]),
        ((1, 0), [0, 9]),
        *[((1, 1), [0, 9])] * 2,
    ]
    assert made.steps.loss.tolist() == [[1.5, 3.5]]
    assert made.steps.tokens.tolist() == [[16, 16]]
    # each new rank keeps the orders of both: those of rank 1 are 0, 1, 3, 4
    orders = [[made.sites[s].peers for s in made.order(rank)] for rank in (0, 1)]
    assert orders[0] == [(0, 0), (0, 1), (0, 0), (1, 0)]
    assert orders[1] == [(0, 1), (1, 1), (1, 0), (1, 1)]
    few, ledger = rescaled(pipeline(), Scaling(rank_map="0,-,1,2"))
    assert [s.peers for s in few.sites] == [(1, 2), (2, 1)]
    assert ledger.left_out == 4
    plan = operations(few)
    assert (plan.sender.tolist(), plan.receiver.tolist()) == ([1, 2], [2, 1])
    # a message is not split: the first of the new ranks sends it
    more = rescale(pipeline(), Scaling(expand="8"))
    assert more.volume(np.arange(1)).tolist() == [[9, *[0] * 7]]
    assert more.sites[0].peers == (0, 2)
    assert more.present(np.arange(1))[0].tolist() == [True, False, True, *[False] * 5]


# ---- ranks and times ---------------------------------------------------------------


def test_rank_for_rank_nothing_changes():
    trace = make_trace(world=4, groups=[(0, 2), (3, 1)])
    mapped = rescaled(trace, Scaling())[0]
    same, plan = operations(mapped), operations(trace)
    others = programs(mapped, same, range(4))
    for rank, program in programs(trace, plan, range(4)).items():
        for name, values in vars(program).items():
            np.testing.assert_array_equal(values, getattr(others[rank], name))
    assert same.bottleneck_bytes.tolist() == plan.bottleneck_bytes.tolist()


six = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=6, max_size=6)


@given(where=six, seed=st.integers(0, 9), factor=st.sampled_from((1, 3)))
@settings(max_examples=10, deadline=None)
def test_bytes_and_times_are_those_of_the_ranks_on_each(where, seed, factor):
    where = without_gaps(where)
    if where == [None] * 6:
        where[0] = 0
    trace = make_trace(
        world=6, groups=[(0, 2, 4), (5, 3, 1)], iterations=(0, 2), seed=seed
    )
    rng = np.random.default_rng(seed)
    shapes = {w: trace.panels[f"call_{w}/end"].shape for w in (3, 6)}
    late = {w: rng.integers(0, 10**9, shape) for w, shape in shapes.items()}
    ends = {w: t + 7 for w, t in late.items()}
    trace = with_times(trace, {"issue": late, "end": ends})
    scaling = Scaling(rank_map=listed(where), factor=Fraction(factor))
    made, ledger = rescaled(trace, scaling)
    for number, site in enumerate(made.sites):
        at = np.flatnonzero(made.occurrences.site == number)
        source = np.flatnonzero(
            trace.occurrences.site == trace.sites.index(site)  # these do not change
        )
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
    assert ledger.left_out == sum(
        trace.groups[trace.sites[s].group] in gone for s in trace.occurrences.site
    )


def test_it_can_be_saved_and_is_planned_the_same(tmp_path):
    trace = make_trace(world=4, groups=[(0, 1), (2, 3)])
    made = rescale(trace, Scaling(fold="2:strided"))
    made.save(tmp_path / "folded.h5")
    with Trace.open(tmp_path / "folded.h5") as found:
        assert found.meta.world == 2
        again, plan = (operations(t, in_common=True) for t in (found, made))
        others = programs(found, again, (0, 1))
        assert (again.bottleneck_bytes == plan.bottleneck_bytes).all()
        for rank, program in programs(made, plan, (0, 1)).items():
            theirs = others[rank].operation
            assert theirs.tolist() == program.operation.tolist()


def test_groups_that_meet_alternate_where_times_are_unknown():
    counts = np.ones((1, 2, 2, 4), int)
    one = Trace.from_arrays(counts)
    groups = [Group(kind="ep", ranks=(0, 1)), Group(kind="ep", ranks=(2, 3))]
    # the second group's calls follow all of the first's
    sites = [replace(s, group=g) for g in (0, 1) for s in one.sites]
    twice = np.tile(np.arange(len(one.occurrences)), 2)
    every = one.occurrences[twice]
    panels = {
        name: ArrayPanel(np.concatenate([p.read(0, p.shape[0])] * 2))
        for name, p in one.panels.items()
    }
    trace = one.replaced(
        meta=replace(one.meta, world=4),
        groups=groups,
        sites=sites,
        occurrences=replace(every, site=np.arange(len(sites), dtype=np.int32)),
        panels=panels,
        placements=None,
        steps=Steps.of_training(np.arange(1), 4),
    )
    made = rescale(trace, Scaling(fold="2:strided"))
    order = [made.sites[s] for s in made.order(0)]
    assert [s.group for s in order] == [0, 1] * (len(order) // 2)
    assert [s.phase for s in order[::2]] == [s.phase for s in order[1::2]]


def test_the_digest_covers_times_which_order_the_operations_at_every_pace():
    trace = make_trace(world=2)
    issue = trace.panels["call_2/issue"].read(0, len(trace.occurrences)).copy()
    issue[3, 1] -= 1
    other = with_times(trace, {"issue": {2: issue}})
    one, two = (operations(t).digest for t in (trace, other))
    assert one != two
    renamed = trace.replaced(meta=replace(trace.meta, model="other"))
    assert operations(renamed).digest == one


# ---- missing records -------------------------------------------------------------


def exchange_without(tokens, absent: int) -> Trace:
    """A dispatch of 8-byte rows and a combine of 16-byte rows; one rank is absent."""
    sites = [
        Site(group=0, operation="all_to_all", phase=phase, layer=0, row_bytes=row)
        for phase, row in (("dispatch", 8), ("combine", 16))
    ]
    wire = np.stack([tokens * 8, tokens.T * 16])
    wire[:, absent] = 0
    present = np.full(wire.shape[:2], Presence.RECORDED, np.uint8)
    present[:, absent] = Presence.ABSENT
    return calls_of(sites, wire, column="wire", present=present)


def test_a_rank_without_record_stands_in_its_peers_columns():
    """Of a dispatch and the combine that sends it back, each rank writing its row."""
    tokens = np.random.default_rng(3).integers(0, 9, (4, 4))
    trace = exchange_without(tokens, absent=2)
    off, others = ~np.eye(4, dtype=bool), [0, 1, 3]
    for call, (whole, unit) in enumerate(((tokens, 8), (tokens.T, 16))):
        captured, found = completed(trace, np.array([call]), "peers")
        assert not captured[0, 2].any()
        np.testing.assert_array_equal(found[0][off], (whole * unit)[off])
        mean = (2 * whole[others, others].sum() + 3) // 6
        assert found[0, 2, 2] == mean * unit


def test_the_mean_of_a_column_fills_it():
    tokens = np.array([[7, 1, 2], [4, 8, 5], [9, 9, 9]])
    trace = exchange_without(tokens, absent=2)
    _, found = completed(trace, np.arange(1), "mean")
    # column 0: rank 1 sent 4; column 1: rank 0 sent 1; itself: (7 + 8) / 2, half up
    assert (found[0, 2] // 8).tolist() == [4, 1, 8]


def test_bytes_that_never_change_are_known_from_one_record():
    trace = make_trace(world=3, absent=[(1, 2)])
    counts = np.flatnonzero([s.label == "count_exchange" for s in trace.sites])
    calls = np.flatnonzero(np.isin(trace.occurrences.site, counts))
    captured, whole = completed(trace, calls, "mean")
    assert (captured == 8).all()
    assert (whole == 8).all()


def test_completed_phases_are_transposes_of_each_other(wide):
    panel = wide.panels[f"call_{RANKS}/present"]
    present = panel.read(0, panel.shape[0]).copy()
    present[:, 5] = Presence.ABSENT
    gone = wide.replaced(
        panels=wide.panels | {f"call_{RANKS}/present": ArrayPanel(present)}
    )
    assert exchanges(rescale(gone, Scaling(missing="mean")))["dispatch"][:, 5].any()
    refuse_untransposed(exchanges(rescale(gone, Scaling(missing="peers", fold="4"))))


def test_a_record_is_missing_where_one_of_the_ranks_has_none():
    trace = make_trace(world=4, absent=[(3, 1)])
    made = rescale(trace, Scaling(fold="2"))
    at = made.find(phase="dispatch", kind=None)
    gone = made.occurrences.iteration[at] == 1
    np.testing.assert_array_equal(made.present(at)[:, 0], True)
    np.testing.assert_array_equal(made.present(at)[:, 1], ~gone)
    whole = rescale(trace, Scaling(fold="2", missing="mean"))
    assert whole.present(at).all()


# ---- order -----------------------------------------------------------------------


@given(
    order=st.permutations(range(8)),
    keep=st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=5),
)
def test_one_order_keeps_every_ranks_own(order, keep):
    sequences = [np.array([i for i in order if i in some]) for some in keep]
    found = merged(sequences).tolist()
    assert sorted(found) == sorted(set().union(*keep))
    for sequence in sequences:
        mine = set(sequence.tolist())
        assert [i for i in found if i in mine] == sequence.tolist()


def test_orders_that_contradict_each_other_still_make_one():
    found = merged([np.array([0, 1, 2]), np.array([1, 0, 2])]).tolist()
    assert sorted(found) == [0, 1, 2]
    assert found[2] == 2


def test_the_common_order_is_each_ranks_own_order():
    trace = make_trace(world=4, groups=[(0, 2), (3, 1)])
    at = trace.find(operation="all_to_all", kind=None)
    place = np.full(len(trace.occurrences), -1)
    place[at] = common_order(trace, at)
    assert sorted(place[at].tolist()) == list(range(len(at)))
    for rank in range(4):
        mine = trace.order(rank)
        mine = mine[np.isin(mine, at)]
        assert (np.diff(place[mine]) > 0).all()


# ---- what is refused -------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"fold": "4", "ranks": "0"}, "in one way, but there are --fold and --ranks"),
        ({"fold": "9"}, "--fold is a number of ranks from 1 to 2 for this trace"),
        ({"fold": "2:diagonal"}, "the rule is one of contiguous, strided"),
        ({"fold": "many"}, "--fold is a number of ranks"),
        ({"expand": "1"}, "--expand is a number of ranks from 2 to 9999999"),
        ({"expand": "4:experts"}, "--expand is a number of ranks"),
        ({"ranks": "0,0"}, "each once, but --ranks is 0,0"),
        ({"ranks": "2"}, "names some of 0 to 1"),
        ({"ranks": "3:1"}, "A:B for the half-open range"),
        ({"rank_map": "0"}, "for each of the trace's 2 ranks.* has 1, 0: change"),
        ({"rank_map": "0,2"}, "without a gap.* has 2, 0,2: change"),
        ({"rank_map": "-,-"}, "has 2, -,-: change"),
        ({"rank_map": "0,x"}, "has 2, 0,x: change"),
        ({"missing": "zero"}, "the rule is one of peers, mean"),
    ],
)
def test_what_cannot_be_mapped_is_refused(asked, says):
    with pytest.raises(ReplayError, match=says):
        rescale(make_trace(), Scaling(**asked))


def test_a_rank_map_is_read_from_a_file(tmp_path):
    (tmp_path / "map.txt").write_text("# rank 0 and 1\n1 0\n- , 1  # the others\n")
    found = rank_map(Meta(world=4), "rank-map", str(tmp_path / "map.txt"))
    assert found == ((1,), (0,), (), (1,))
