"""Several kinds of parallelism at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moetraffic.patterns import Workload
from moetraffic.trace import Trace

Run = Callable[..., list[Any]]
Small = Callable[..., Workload]
Sent = Callable[..., dict[Any, list[int]]]

EIGHT = {"dp": 2, "ep": 2, "tp": 2, "pp": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {**EIGHT, "order": "pp-tp-cp-ep-dp"},
        {**EIGHT, "zero": 1, "order": "dp-ep-cp-pp-tp"},
        {"dp": 4, "ep": 2, "tp": 2, "zero": 3},
    ],
    ids=str,
)
def test_a_run_on_eight_ranks_equals_one_process(
    layout: dict[str, Any], run_as_one: Run, small: Small
) -> None:
    run_as_one(small(layout))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "pp-dp-ep-tp-cp"])
@pytest.mark.parametrize(
    "gating",
    [
        {"dispatch": "padded", "capacity_factor": 0.75},
        {"dispatch": "dropped", "capacity_factor": 0.75},
        {"dispatch": "dropped", "router": "switch", "k": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "layout",
    [
        EIGHT,
        {**EIGHT, "zero": 1},
        {"dp": 4, "ep": 2, "pp": 2, "zero": 1},
        {"dp": 4, "ep": 2, "tp": 2, "zero": 1},
        {"dp": 4, "ep": 2, "tp": 2, "zero": 2},
        {"dp": 4, "ep": 4, "tp": 2, "zero": 2},
        {"dp": 4, "ep": 4, "tp": 2, "zero": 3},
        {"dp": 8, "ep": 2, "zero": 2},
        {"dp": 8, "ep": 2, "zero": 3},
        {"dp": 2, "ep": 1, "tp": 2, "pp": 2},
        {"dp": 2, "ep": 2, "pp": 4},
    ],
    ids=str,
)
def test_every_combination(
    layout: dict[str, Any],
    gating: dict[str, Any],
    order: str,
    run_as_one: Run,
    small: Small,
) -> None:
    plan = {"accumulation": 4} if layout.get("pp", 1) > 2 else {}
    run_as_one(small({**layout, "order": order}, **gating, **plan))


def test_a_trace_holds_all_patterns_side_by_side(
    tmp_path: Path, run_as_one: Run, small: Small, sent: Sent
) -> None:
    path = tmp_path / "run.h5"
    work = small(EIGHT)
    run_as_one(work, capture=str(path))
    m, bsh = 2, 2 * 12 * 16 * 8
    with Trace.open(path) as trace:
        assert not trace.meta.missing
        assert (trace.meta.tp, trace.meta.pp, trace.meta.ep) == (2, 2, 2)
        kinds = {"tp", "ep", "dp", "pp", "embedding"}
        for kind in kinds:
            expected = set(work.layout.groups(kind))
            assert {g.ranks for g in trace.groups if g.kind == kind} == expected
        assert {g.kind for g in trace.groups} == kinds
        for rank in range(8):
            found = sent(trace, rank)
            dense, moe = (0, 1) if rank < 4 else (2, 3)
            for direction in ("forward", "backward"):
                place = ("tp", "all_reduce", "tensor_parallel")
                reduced = found[(*place, dense, direction, (-1, -1))]
                assert reduced == [bsh, bsh] * m
                # attention's, and the experts' of as many copies as arrived
                reduced = found[(*place, moe, direction, (-1, -1))]
                arrived = [size for size in reduced if size != bsh]
                assert len(reduced) == 2 * m
                assert len(arrived) <= m
            out, back = ((0, 1), (1, 0))
            for peers in (out, back):
                activations = found["pp", "send_recv", "pipeline", -1, "forward", peers]
                assert activations == [bsh] * m
            exchanged = {k[2]: v for k, v in found.items() if k[0] == "ep"}
            assert {k[3] for k in found if k[0] == "ep"} == {moe, -1}
            # dropless: a rank sends its k b s rows, or gets them back
            for phase in ("dispatch", "combine_grad"):
                assert exchanged[phase] == [work.gating.k * bsh] * m
        # the tensor-parallel ranks route alike, each in its own exchange
        pairs = [(0, 2), (1, 3)]
        a, b = (
            trace.matrix(
                1,
                1,
                "dispatch",
                group=next(
                    i for i, g in enumerate(trace.groups) if (g.kind, g.ranks) == key
                ),
                of="wire",
            ).values.tolist()
            for key in (("ep", pair) for pair in pairs)
        )
        assert a == b
