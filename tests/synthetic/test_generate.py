from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic import generate_trace
from moetraffic.arrays import Int32
from moetraffic.cli import main
from moetraffic.data import path
from moetraffic.errors import AnalysisError, LayoutError, TraceError
from moetraffic.synthetic import TrafficModel, copy_of, preset_model, preset_names
from moetraffic.synthetic import scenario as scenarios
from moetraffic.synthetic.relabel import relabel
from moetraffic.synthetic.surrogate import Sample
from moetraffic.trace import PHASES, Trace

from .runs import simulated, write


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    paths = [folder / f"run{number}.h5" for number in range(3)]
    for number, run in enumerate(paths):
        write(run, simulated(number, 60))
    return paths


@pytest.fixture(scope="module")
def model(runs: list[Path]) -> TrafficModel:
    return TrafficModel.fit([Trace.open(runs[0])])


def resized(model: TrafficModel, *, slots: int, capacity: int) -> TrafficModel:
    """The model of a run of more micro-batches and with a capacity."""
    scenario = model.scenario
    exchanges = tuple(
        replace(x, slot=slot) for slot in range(slots) for x in scenario.exchanges
    )
    return replace(
        model, scenario=replace(scenario, exchanges=exchanges, capacity=capacity)
    )


def test_the_trace_holds_what_is_drawn(model: TrafficModel, tmp_path: Path) -> None:
    run = resized(model, slots=2, capacity=30).sample(
        iterations=5, seed=2, ranks=8, experts=4
    )
    counts = np.concatenate([*run.counts.blocks()]).reshape(5, 2, 2, 8, 4)
    assert run.scenario.capacity == 60
    assert run.write(tmp_path / "synthetic.h5") == 5
    with Trace.open(tmp_path / "synthetic.h5") as trace:
        meta = trace.meta
        assert (meta.origin, meta.world, meta.ep, meta.virtual) == (
            *("generated", 8, 4),
            True,
        )
        for x in run.scenario.exchanges:
            for number, group in enumerate(trace.groups):
                where: dict[str, Any] = {
                    "layer": x.layer,
                    "slot": x.slot,
                    "group": number,
                }
                drawn = counts[:, x.layer, x.slot, list(group.ranks)]
                routed = trace.find(operation="routing", **where)
                assert (trace.demand(routed) == drawn).all()
                assert (trace.dropped(routed) == np.maximum(drawn - 60, 0)).all()
                sent = 64 * np.minimum(drawn, 60)  # an expert a rank
                for phase in PHASES:
                    turned = phase in ("combine", "dispatch_grad")
                    wire = trace.wire(trace.find(phase=phase, **where))
                    assert (wire == (sent.swapaxes(1, 2) if turned else sent)).all()


def test_an_interrupt_keeps_what_is_complete(
    model: TrafficModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = np.concatenate([*model.sample(iterations=20, seed=2).counts.blocks()])

    def ended(after: int) -> None:
        def blocks(self: Sample) -> Iterator[Int32]:
            for first in range(0, 4 * after, 4):
                yield whole[first : first + 4]
            raise KeyboardInterrupt

        monkeypatch.setattr(Sample, "blocks", blocks)

    ended(after=3)
    run = model.sample(iterations=20, seed=2)
    assert run.write(tmp_path / "part.h5") == 12
    with Trace.open(tmp_path / "part.h5") as part:
        assert not part.meta.complete
        assert "12 of 20" in part.meta.missing
        demand = part.demand(part.find(operation="routing", layer=0))
        assert (demand == whole[:12, 0]).all()
    ended(after=0)
    with pytest.raises(KeyboardInterrupt):
        run.write(tmp_path / "none.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part.h5"]


def test_times_are_those_of_the_captured_iterations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scenarios, "SHORTEST", 12)
    with Trace.open(path("golden.h5")) as golden:
        run = copy_of(golden, iterations=20, ranks=4, ep=2)
        assert run.counts.repeats_from == 12
        run.write(tmp_path / "copy.h5")
        with Trace.open(tmp_path / "copy.h5") as made:
            first = made.find(phase="dispatch", group=1)[:12]
            asked: dict[str, Any] = {
                "phase": "dispatch",
                "layer": made.sites[0].layer,
                "slot": 0,
            }
            own = golden.times(golden.find(**asked))
            for group in (0, 1):
                times = made.times(made.find(**asked, group=group))
                for column, captured in zip(times, own, strict=True):
                    shift = captured[0] - column[0]
                    assert (column[:12] == captured - shift).all()
            issue, _, end = made.times(np.sort(first))
            assert (end > issue).all()
            steps = made.steps
            assert (np.diff(steps.start, axis=0) > 0).all()
            assert made.meta.repeats_from == 12
            assert made.meta.source.startswith("relabeled copy of")
        assert copy_of(golden, ranks=4, ep=4).times is None


def test_a_copy_is_the_run_under_other_labels() -> None:
    captured = simulated(0, 30)
    rows = np.arange(6) % 4
    copy = relabel(captured, iterations=42, seed=3, ep=4, rows=rows)
    counts = np.concatenate([*copy.blocks()])
    assert copy.repeats_from == 30
    for layer in range(2):
        labels = copy.labels[0, layer]
        assert (counts[:30, layer, :4] == captured[:, layer][:, :, labels]).all()
        assert (labels.reshape(4, 2) // 2 == labels.reshape(4, 2)[:, :1] // 2).all()
    assert (counts[:, :, 4:] == counts[:, :, :2]).all()
    assert (np.sort(counts[30:40, :, :4]) == np.sort(captured[20:30])).all()
    assert relabel(captured, iterations=30, seed=3, ep=4).repeats_from == -1


def test_a_model_comes_back_from_its_file(model: TrafficModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.h5")
    again = TrafficModel.load(tmp_path / "model.h5")
    assert again.scenario == model.scenario
    again.save(tmp_path / "again.h5")
    assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "model.h5").read_bytes()
    first, second = (
        generate_trace(source, iterations=4).digest
        for source in (again, tmp_path / "again.h5")
    )
    assert first == second
    with pytest.raises(TraceError, match="exists"):
        model.save(tmp_path / "model.h5")
    raw = bytearray((tmp_path / "model.h5").read_bytes())
    for at in range(200, len(raw), len(raw) // 11):
        broken = raw.copy()
        broken[at] ^= 0x5A
        (tmp_path / "model.h5").write_bytes(broken)
        try:
            loaded = TrafficModel.load(tmp_path / "model.h5")
        except TraceError:
            continue
        # room that HDF5 left between the parts has no meaning
        assert (loaded.surrogate.level == again.surrogate.level).all()


def test_shipped_models_sample_their_tokens() -> None:
    assert len(preset_names()) == 12
    for name in preset_names():
        run = preset_model(name).sample(iterations=2)
        counts = next(run.counts.blocks())
        assert (counts.sum(axis=3) == run.scenario.k * run.scenario.tokens).all()
        assert path(f"traffic-{name}.h5").stat().st_size < 80_000


def test_several_samples_are_independent_files_that_are_evaluated_together(
    runs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = list(map(str, runs))
    asked = ["--samples", "3", "--iterations", "24", "-o", "s.h5", "--json"]
    assert main(["generate", *names, *asked]) == 0
    data = json.loads(capsys.readouterr().out)
    made = [row["file"] for row in data["tables"]["files"]]
    assert made == ["s-1.h5", "s-2.h5", "s-3.h5"]
    assert data["data"]["fitted_runs"] == 3
    assert len({Trace.open(name).digest for name in made}) == 3
    assert main(["evaluate", *made, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]
    assert main(["place", "s-1.h5", "--ep", "2", "-o", "placed.h5"]) == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["RUN", "-o", "x.h5", "--k", "64"], "change --k"),
        (["RUN", "-o", "x.h5", "--ranks", "7", "--ep", "2"], "give --ep a divisor"),
        (["RUN", "--from", "top2-balanced-late", "-o", "x.h5"], "give one of each"),
        (["RUN"], "give one of each"),
        (["RUN", "-o", "x.h5", "--copy", "--skew", "2"], "leave out --copy"),
        (["--from", "top3", "-o", "x.h5"], "top2-balanced-late"),
    ],
)
def test_what_cannot_be_generated_is_one_sentence(
    runs: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asked: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    named = [str(runs[0]) if word == "RUN" else word for word in asked]
    assert main(["generate", *named]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_runs_that_cannot_be_fitted_are_refused(
    runs: list[Path], tmp_path: Path
) -> None:
    write(tmp_path / "short.h5", simulated(0, 20))
    with pytest.raises(AnalysisError, match="at least 30 iterations"):
        generate_trace(tmp_path / "short.h5")
    write(tmp_path / "wider.h5", simulated(0, 60).repeat(2, axis=2))
    with pytest.raises(AnalysisError, match="differ in"):
        generate_trace([runs[0], tmp_path / "wider.h5"])
    with pytest.raises(LayoutError, match="one trace is copied"):
        generate_trace(runs, copy=True)
