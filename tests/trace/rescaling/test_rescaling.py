"""On other ranks, with other bytes: what is conserved, and what stays transposed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.capture import VirtualRecorder
from moetraffic.errors import ReplayError
from moetraffic.models import train_virtually
from moetraffic.patterns import (
    Gating,
    ModelShape,
    Parallelism,
    Training,
    Workload,
)
from moetraffic.trace.model import PHASES, TRANSPOSED_PHASES, Presence
from moetraffic.trace.order import common_order, merged
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.rescaling import rank_map, rescale, sharing
from moetraffic.trace.rescaling.byte_factor import factor_of, times
from moetraffic.trace.rescaling.missing_rows import complete
from moetraffic.trace.rescaling.rescaling import Scaling
from moetraffic.trace.rescaling.trace_scaling import TraceScale
from moetraffic.trace.trace import Trace

RANKS = 64


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """64 ranks that train on real text in this process: top-2, nothing dropped."""
    torch.set_num_threads(1)
    work = Workload(
        model=ModelShape(
            layers=2,
            hidden=16,
            heads=2,
            sequence=16,
            experts=2 * RANKS,
            moe_every=1,
        ),
        gating=Gating(k=2),
        layout=Parallelism(dp=RANKS, ep=RANKS),
        training=Training(micro_batch=1, iterations=2, virtual=True),
    )
    path = tmp_path_factory.mktemp("wide") / "wide.h5"
    with VirtualRecorder(path, workload=work) as recorder:
        train_virtually(work, recorder)
    return Trace.open(path)


def exchanges(trace: Trace):
    """Occurrences and bytes of each phase, ``[n, R, R]``."""
    found = {}
    for phase in PHASES:
        at = trace.find(phase=phase)
        if len(at):
            found[phase] = at, trace.wire(at)
    assert len(found) == 4
    return found


def scaled(scale: TraceScale, trace: Trace):
    return {
        phase: scale.matrices(trace.sites[trace.occurrences.site[at[0]]].group, w, at)
        for phase, (at, w) in exchanges(trace).items()
    }


def refuse_untransposed(matrices):
    dispatch = matrices["dispatch"]
    for phase, wire in matrices.items():
        turned = wire.transpose(0, 2, 1) if phase in TRANSPOSED_PHASES else wire
        # the first layer has no gradient to send back: compare what is there
        np.testing.assert_array_equal(turned, dispatch[-len(turned) :])


# ---- fewer ranks -----------------------------------------------------------------


def test_64_ranks_folded_on_4_move_exactly_the_sums_of_their_blocks(wide):
    scale = Scaling(fold="4").scale(wide)
    found = scaled(scale, wide)
    for phase, (_, wire) in exchanges(wide).items():
        blocks = wire.reshape(len(wire), 4, 16, 4, 16).sum(axis=(2, 4))
        np.testing.assert_array_equal(found[phase], blocks)
    assert scale.world == 4
    ledger = scale.ledger
    every = sum(int(w.sum()) for _, w in exchanges(wide).values())
    assert ledger.captured == ledger.sent == every
    assert ledger.inside > ledger.captured_inside
    assert not any("lost" in line or " 0 B" in line for line in ledger.lines())


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
    scale = TraceScale(
        wide,
        rank_map.explicit(RANKS, where),
        self_traffic=self_traffic,
        factor=Fraction(1, factor),
    )
    found = scaled(scale, wide)
    refuse_untransposed(found)
    ledger = scale.ledger
    exact = Fraction(ledger.captured - ledger.lost, factor)
    assert ledger.sent == sum(int(w.sum()) for w in found.values())
    cells = sum(w.size for w in found.values())
    assert abs(ledger.sent - exact) < 16 * cells
    if not self_traffic:
        assert all(np.trace(w, axis1=1, axis2=2).sum() == 0 for w in found.values())
    # each block by hand
    first = next(iter(exchanges(wide).values()))[1][0]
    for a in range(scale.world):
        for b in range(scale.world):
            of_a = [r for r, new in enumerate(where) if new == a]
            of_b = [r for r, new in enumerate(where) if new == b]
            block = int(first[np.ix_(of_a, of_b)].sum())
            unit = 1 if block % 16 else 16
            want = unit * max(1, (2 * block // unit + factor) // (2 * factor))
            want = want if block else 0
            here = found["dispatch"][0, a, b]
            assert here == (0 if a == b and not self_traffic else want)


def test_a_permutation_moves_the_same_bytes_between_other_ranks(wide):
    where = np.random.default_rng(0).permutation(RANKS)
    scale = TraceScale(wide, rank_map.explicit(RANKS, where.tolist()))
    for phase, (_, wire) in exchanges(wide).items():
        np.testing.assert_array_equal(
            scaled(scale, wide)[phase][:, where[:, None], where], wire
        )


def test_a_choice_of_ranks_keeps_what_they_send_each_other(wide):
    scale = Scaling(ranks="3,10:12,63").scale(wide)
    keep = [3, 10, 11, 63]
    for phase, (_, wire) in exchanges(wide).items():
        np.testing.assert_array_equal(
            scaled(scale, wide)[phase], wire[:, keep][:, :, keep]
        )
    assert scale.ledger.lost > 0
    assert [scale.rank(old) for old in (3, 10, 11, 12, 63)] == [0, 1, 2, -1, 3]


def test_ranks_of_a_node_meet(toy):
    assert rank_map.fold_nodes(["b", "a", "b"]).targets == ((0,), (1,), (0,))
    with pytest.raises(ReplayError, match="needs the node of every rank"):
        Scaling(fold="nodes").scale(toy())


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
    made = sharing.split(cells, parts)
    blocks = np.add.reduceat(np.add.reduceat(made, begins, axis=1), begins, axis=2)
    np.testing.assert_array_equal(blocks, cells)
    ends = begins + parts
    for rows in map(slice, begins.tolist(), ends.tolist()):
        sent = made[:, rows].sum(axis=2)
        assert np.ptp(sent, axis=1).max() <= 1  # the whole rows, not only the cells
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        for column in range(int(parts.sum())):
            assert np.ptp(made[:, begin:end, column], axis=1).max() <= 1


def test_64_ranks_spread_over_128_move_the_same_bytes(wide):
    scale = Scaling(expand="128").scale(wide)
    found = scaled(scale, wide)
    refuse_untransposed(found)
    for phase, (_, wire) in exchanges(wide).items():
        blocks = found[phase].reshape(len(wire), RANKS, 2, RANKS, 2).sum(axis=(2, 4))
        np.testing.assert_array_equal(blocks, wire)
    assert scale.ledger.captured == scale.ledger.sent
    assert scale.ledger.inside < scale.ledger.captured_inside


def test_spread_and_folded_back_nothing_changed(wide):
    there = rank_map.expand(RANKS, 100)
    back = [old for new in range(100) for old in there.origins[new]]
    for phase, wire in scaled(TraceScale(wide, there), wide).items():
        again = np.zeros((len(wire), RANKS, RANKS), np.int64)
        np.add.at(
            again, (slice(None), np.array(back)[:, None], np.array(back)[None]), wire
        )
        np.testing.assert_array_equal(again, exchanges(wide)[phase][1])


# ---- bytes -----------------------------------------------------------------------


@given(
    nbytes=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5),
    p=st.integers(1, 60),
    q=st.integers(1, 1000),
)
def test_bytes_are_multiplied_to_the_nearest_byte_or_16_bytes(nbytes, p, q):
    factor = Fraction(p, q)
    for before, after in zip(
        nbytes, times(np.array(nbytes), factor).tolist(), strict=True
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
    # rows are of 16 float32: every cell, and so every offset, is a multiple of 16 bytes
    made = rescale(wide, scaling)
    for at, wire in exchanges(made).values():
        assert len(at)
        for axis in (1, 2):
            assert not (np.cumsum(wire, axis=axis) % 16).any()


def test_factors_are_read_exactly():
    assert factor_of("x0.1") == Fraction(1, 10)
    assert factor_of("x1/3") == Fraction(1, 3)
    for text in ("0.1", "1/8", "x0", "x-1", "1e9", "x0.0000001", "x1/0", "nan", ""):
        with pytest.raises(ReplayError, match="for a tenth"):
            factor_of(text)
    with pytest.raises(ReplayError, match="lower --bytes"):
        times(np.array([1 << 46]), Fraction(2))


# ---- other collectives -----------------------------------------------------------


def test_what_all_have_stays_and_what_each_has_adds_up(toy):
    trace = toy(world=4, groups=[(0, 1, 2, 3)])
    scale = Scaling(fold="2").scale(trace)
    at = np.zeros(1, np.int64)
    parts = np.array([[10, 20, 30, 40]])
    assert scale.volumes(0, "all_gather", parts, at).tolist() == [[30, 70]]
    same = np.full((1, 4), 64)
    assert scale.volumes(0, "all_reduce", same, at).tolist() == [[64, 64]]
    assert scale.volumes(0, "reduce_scatter", same, at).tolist() == [[64, 64]]
    message = np.array([[0, 0, 9, 0]])
    assert scale.volumes(0, "send_recv", message, at).tolist() == [[0, 9]]
    more = Scaling(expand="8").scale(trace)
    assert more.volumes(0, "all_gather", parts, at).sum() == 100
    assert more.volumes(0, "all_reduce", same, at).tolist() == [[64] * 8]
    assert more.volumes(0, "send_recv", message, at).tolist() == [
        [0] * 4 + [9, 0, 0, 0]
    ]


# ---- missing records -------------------------------------------------------------


def without(trace: Trace, rank: int) -> tuple[Trace, np.ndarray]:
    """The trace as if this rank had left no record: its rows are 0."""
    panels = dict(trace.panels)
    panel = panels[f"present_{RANKS}"]
    present = panel.read(0, panel.shape[0]).copy()
    present[:, rank] = Presence.ABSENT
    panels[f"present_{RANKS}"] = ArrayPanel(present)
    name = f"demand_{RANKS}x{2 * RANKS}"
    demand = panels[name].read(0, panels[name].shape[0]).copy()
    demand[:, rank] = 0
    panels[name] = ArrayPanel(demand)
    gone = Trace(
        meta=trace.meta,
        groups=trace.groups,
        sites=trace.sites,
        occurrences=trace.occurrences,
        panels=panels,
        steps=trace.steps,
        programs=trace.programs,
        placements=trace.placements,
    )
    return gone, present


def test_a_rank_without_record_stands_in_its_peers_columns():
    """Of a dispatch and the combine that sends it back, each rank writing its row."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 9, (2, 4, 4))
    trace = four_ranks(tokens, absent=2)
    for phase, whole in (("dispatch", tokens), ("combine", tokens.transpose(0, 2, 1))):
        at = trace.find(phase=phase, kind=None)
        wire = trace.wire(at)
        assert not wire[:, 2].any()
        unit = trace.sites[trace.occurrences.site[at[0]]].row_bytes
        found = complete(trace, at, wire, "peers")
        off = ~np.eye(4, dtype=bool)
        np.testing.assert_array_equal(found[:, off], (whole * unit)[:, off])
        others = [0, 1, 3]
        kept = np.array([whole[n][others, others].sum() for n in range(2)])
        mean = (2 * kept + 3) // 6
        assert found[:, 2, 2].tolist() == (mean * unit).tolist()


def test_the_mean_of_a_column_fills_it():
    tokens = np.array([[[7, 1, 2], [4, 8, 5], [9, 9, 9]]])
    trace = four_ranks(tokens, absent=2)
    at = trace.find(phase="dispatch", kind=None)
    found = complete(trace, at, trace.wire(at), "mean")
    unit = trace.sites[0].row_bytes
    # column 0: rank 1 sent 4; column 1: rank 0 sent 1; itself: (7 + 8) / 2, half up
    assert (found[0, 2] // unit).tolist() == [4, 1, 8]


def test_completed_phases_are_transposes_of_each_other(wide):
    gone, _ = without(wide, 5)
    scale = Scaling(missing="mean").scale(gone)
    at = gone.find(phase="dispatch")
    group = gone.sites[gone.occurrences.site[at[0]]].group
    made = scale.matrices(group, gone.wire(at), at)
    assert made[:, 5].any()
    again = Scaling(missing="peers", fold="4").scale(gone)
    refuse_untransposed(scaled(again, gone))


def four_ranks(tokens, *, absent: int) -> Trace:
    """A dispatch of 8-byte rows and a combine of 16-byte rows, stored as bytes."""
    from moetraffic.trace.model import Group, Meta, Occurrences, Site, Steps, WireForm

    count, width, _ = tokens.shape
    sites = [
        Site(
            group=0,
            operation="all_to_all",
            phase=phase,
            layer=0,
            row_bytes=row,
            wire=WireForm.STORED,
        )
        for phase, row in (("dispatch", 8), ("combine", 16))
    ]
    wire = np.concatenate([tokens * 8, tokens.transpose(0, 2, 1) * 16])
    wire[:, absent] = 0
    present = np.full((2 * count, width), Presence.RECORDED, np.uint8)
    present[:, absent] = Presence.ABSENT
    times_ = np.repeat(np.arange(2 * count)[:, None], width, axis=1).astype(np.int64)
    shape = count, width
    return Trace(
        meta=Meta(world=width),
        groups=[Group(kind="ep", ranks=tuple(range(width)))],
        sites=sites,
        occurrences=Occurrences(
            iteration=np.tile(np.arange(count), 2),
            site=np.repeat(np.arange(2, dtype=np.int32), count),
            sequence=np.full(2 * count, -1, np.int64),
        ),
        panels={
            f"present_{width}": ArrayPanel(present),
            **{f"{n}_{width}": ArrayPanel(times_) for n in ("issue", "start", "end")},
            f"wire_{width}": ArrayPanel(wire.astype(np.int64)),
        },
        steps=Steps(
            iteration=np.arange(count),
            kind=("train",) * count,
            loss=np.zeros(shape),
            tokens=np.zeros(shape, np.int64),
            start=np.zeros(shape, np.int64),
            end=np.zeros(shape, np.int64),
        ),
    )


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


def test_the_common_order_is_each_ranks_own_order(toy):
    trace = toy(world=4, groups=[(0, 2), (3, 1)])
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
        ({"fold": "9"}, "a fold is onto 1 to 2 ranks"),
        ({"fold": "2:diagonal"}, "the rule is one of contiguous, strided"),
        ({"fold": "many"}, "--fold is a number of ranks"),
        ({"expand": "1"}, "raise it, or use --fold"),
        ({"expand": "4:experts"}, "--expand is a number of ranks"),
        ({"ranks": "0,0"}, "each once, but --ranks is 0,0"),
        ({"ranks": "2"}, "names some of 0 to 1"),
        ({"ranks": "3:1"}, "A:B for the half-open range"),
        ({"rank_map": "0"}, "has 1 places: give 2"),
        ({"rank_map": "0,2"}, "rank 1 carries none"),
        ({"rank_map": "-,-"}, "leaves out all"),
        ({"rank_map": "0,x"}, "a place is 'x'"),
        ({"missing": "zero"}, "peers or mean"),
    ],
)
def test_what_cannot_be_mapped_is_refused(toy, asked, says):
    with pytest.raises(ReplayError, match=says):
        Scaling(**asked).scale(toy())


def test_a_rank_map_is_read_from_a_file(toy, tmp_path):
    (tmp_path / "map.txt").write_text("# rank 0 and 1\n1 0\n- , 1  # the others\n")
    assert rank_map.map_of(str(tmp_path / "map.txt")) == (1, 0, None, 1)
    scale = Scaling(rank_map=str(tmp_path / "map.txt")).scale(toy(world=4))
    assert scale.map.targets == ((1,), (0,), (), (1,))
