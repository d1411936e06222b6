from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.cli import main
from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.generate import (
    Demand,
    Rhythm,
    Scenario,
    TrafficModel,
    scenario_of,
    synthetic_trace,
    write_synthetic_trace,
)
from moetraffic.generate.analog.analog import Analog
from moetraffic.replay import operations
from moetraffic.trace import PHASES, UNKNOWN_TIME, Trace

Make = Callable[..., TrafficModel]


def test_the_file_does_not_depend_on_how_it_was_drawn(
    known_model: Make, tmp_path: Path
) -> None:
    model = known_model(capacity=30, ranks=4)
    for name, threads, rows in (("a", 1, 1), ("b", 3, 4)):
        demand = model.sample(iterations=9, seed=2, threads=threads)
        write_synthetic_trace(demand, tmp_path / name, seed=2, rows=rows)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(TraceError, match="exists"):
        write_synthetic_trace(demand, tmp_path / "a")


def test_experts_are_split_among_the_ranks_that_hold_them_in_any_group() -> None:
    rng = np.random.default_rng(0)
    trace = Trace.from_arrays(rng.multinomial(64, [1 / 8] * 8, (40, 2, 4)), k=1)
    trace.groups = tuple(replace(group, kind="world") for group in trace.groups)
    assert scenario_of(trace)[0].ep == 4


def test_what_is_drawn_is_what_the_trace_holds(
    known_model: Make, tmp_path: Path
) -> None:
    model = known_model(capacity=30, ranks=4, slots=2)
    demand = model.sample(iterations=5, seed=2, ranks=8, experts=4)
    scene = demand.scenario
    counts = np.concatenate([c for _, c in demand.blocks()])
    write_synthetic_trace(demand, tmp_path / "synthetic.h5", seed=2)
    with Trace.open(tmp_path / "synthetic.h5") as synthetic:
        assert synthetic.meta.origin == "generated"
        assert (synthetic.meta.world, synthetic.meta.ep, synthetic.meta.virtual) == (
            8,
            4,
            True,
        )
        for x, exchange in enumerate(scene.exchanges):
            for g, group in enumerate(synthetic.groups):
                where = {"layer": exchange.layer, "slot": exchange.slot, "group": g}
                routed = synthetic.find(operation="routing", **where)
                mine = counts[:, x, list(group.ranks)]
                assert (synthetic.demand(routed) == mine).all()
                dropped = np.maximum(mine - scene.capacity, 0)
                assert (synthetic.dropped(routed) == dropped).all()
                for phase in PHASES:
                    sent = synthetic.wire(synthetic.find(phase=phase, **where))
                    told = (mine - dropped) * 64  # an expert a rank
                    turned = phase in ("combine", "dispatch_grad")
                    assert (sent == (told.transpose(0, 2, 1) if turned else told)).all()
        # each rank sends k times its tokens, less what is dropped
        rows = synthetic.demand(synthetic.find(operation="routing")).sum(axis=2)
        assert (rows == scene.k * scene.tokens).all()


class Ended:
    """A demand that the user ends after some blocks."""

    def __init__(self, demand: Demand, after: int) -> None:
        self.demand, self.after = demand, after

    @property
    def scenario(self) -> Scenario:
        return self.demand.scenario

    @property
    def iterations(self) -> int:
        return self.demand.iterations

    @property
    def repeats_from(self) -> int:
        return self.demand.repeats_from

    def blocks(self, rows: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        for number, block in enumerate(self.demand.blocks(rows)):
            if number == self.after:
                raise KeyboardInterrupt
            yield block


def test_an_interrupt_keeps_what_is_complete(known_model: Make, tmp_path: Path) -> None:
    model = known_model(ranks=4)
    demand = model.sample(iterations=20, seed=2)
    written = write_synthetic_trace(Ended(demand, 3), tmp_path / "part.h5", rows=4)
    assert (written.iterations, written.complete) == (12, False)
    with Trace.open(tmp_path / "part.h5") as part:
        assert not part.meta.complete
        assert "12 of 20" in part.meta.missing
        counts = np.concatenate([c for _, c in demand.blocks()])[:12]
        told = part.demand(part.find(operation="routing", layer=0))
        assert (told == counts[:, 0]).all()
    with pytest.raises(KeyboardInterrupt):
        write_synthetic_trace(Ended(demand, 0), tmp_path / "none.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part.h5"]


def test_gaps_and_order_of_calls_are_those_of_the_capture(
    golden_trace: Trace, known_model: Make, tmp_path: Path
) -> None:
    scenario, _ = scenario_of(golden_trace)
    rhythm = Rhythm.fit(golden_trace, scenario)
    assert rhythm is not None
    model = known_model(ranks=2, experts=4, k=2, tokens=64, slots=2)
    demand = model.sample(iterations=30, seed=0)
    synthetic = synthetic_trace(demand, tmp_path, seed=0, rhythm=rhythm)
    assert not synthetic.meta.virtual
    assert synthetic.clocks.size == 0
    # rank 0 makes its calls in the order of its program, one after the other
    order = synthetic.order(0)
    issue, start, end = synthetic.times(order)
    sent = end[:, 0] != UNKNOWN_TIME
    assert (np.diff(issue[:, 0]) > 0).all()
    assert (start[sent] >= issue[sent].max(axis=1, keepdims=True)).all()
    assert (end[sent] > start[sent]).all()
    program = [n for n, s in enumerate(synthetic.sites) if s.group == 0]
    assert synthetic.occurrences.site[order].tolist() == program * 30
    again = Rhythm.fit(synthetic, demand.scenario)
    assert again is not None
    known = np.isfinite(rhythm.gap)
    # the gap before an iteration holds the slower rank's part
    ratio = np.log(again.gap[known] / rhythm.gap[known])
    assert np.median(np.abs(ratio)) < 0.3
    steps = synthetic.steps
    assert (steps.start[1:] >= steps.end[:-1].max(axis=1, keepdims=True)).all()


def test_a_generated_trace_goes_where_a_captured_one_goes(
    known_model: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    known_model(ranks=4, capacity=40).save(tmp_path / "model.h5")
    asked = ["--ranks", "2", "--iterations", "12", "--skew", "1.5", "--json"]
    assert main(["generate", "model.h5", "-o", "synthetic.h5", *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["iterations"] == 12
    assert main(["analyze", "synthetic.h5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["place", "synthetic.h5", "--ep", "1", "-o", "placed.h5"]) == 0
    assert main(["generate", "synthetic.h5", "-o", "synthetic.h5"]) == 2
    assert "synthetic.h5 exists" in capsys.readouterr().err.replace("\n", " ")
    with Trace.open("synthetic.h5") as synthetic:
        plan = operations(synthetic)
        for phase in PHASES:
            sent = synthetic.find(phase=phase, layer=1)
            replayed = plan.total_bytes[np.isin(plan.occurrence, sent)]
            assert (replayed == synthetic.wire(sent).sum(axis=(1, 2))).all()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--iterations", "0"], "has 1 to 10,000,000 iterations, but 0"),
        (["--k", "64"], "from 1 to 8, but 64 was asked for: change --k"),
        (["--k", "64", "--model", "analog"], "change --k"),
        (["--ranks", "-1"], "change --ranks"),
    ],
)
def test_an_impossible_size_ends_before_the_fit(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asked: list[str],
    said: str,
) -> None:
    def fitted(*_: object, **__: object) -> None:
        raise AssertionError("fitted first")

    monkeypatch.setattr(Analog, "fit", fitted)
    monkeypatch.setattr(TrafficModel, "fit", fitted)
    run, output = path("run-top2-balanced.h5"), tmp_path / "x.h5"
    assert main(["generate", str(run), "-o", str(output), *asked]) == 2
    assert said in capsys.readouterr().err
    assert not output.exists()


def test_a_run_is_no_rerun_of_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = path("run-top2-balanced.h5")
    assert main(["generate", str(run), "--rerun", str(run), "-o", "x.h5"]) == 2
    assert "is given twice" in capsys.readouterr().err
