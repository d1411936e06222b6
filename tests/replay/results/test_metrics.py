"""The Prometheus file: what a parser of the text format reads back, at any moment."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from moetraffic.errors import ReplayError
from moetraffic.launch import Heartbeat
from moetraffic.replay import make_plan
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.results.audit import audit
from moetraffic.replay.results.baselines import Baselines
from moetraffic.replay.results.call_times import measure
from moetraffic.replay.results.console import ProgressDisplay
from moetraffic.replay.results.metrics import PREFIX, result_metrics, write_metrics
from moetraffic.replay.results.result import summarize
from moetraffic.report import prometheus
from moetraffic.report.prometheus import exposition, gauge

UNITS = ("seconds", "bytes", "bytes_per_second", "ratio", "total")
COUNTS = ("running", "ranks", "operations", "verified", "planned")
"""Of what has no unit."""

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def parsed(text: str) -> dict[str, dict]:
    """Metrics of a text exposition 0.0.4; refuses what the format does not allow."""
    assert text.endswith("\n")
    found: dict[str, dict] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, said = line.split(" ", 3)
            assert name not in found
            found[name] = {"help": said, "type": None, "samples": {}}
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge")
            assert found[name]["type"] is None
            assert not found[name]["samples"]
            found[name]["type"] = kind
        else:
            whole = SAMPLE.fullmatch(line)
            assert whole, line
            name, labels, value = whole.groups()
            assert found[name]["type"] is not None, "a sample follows its TYPE"
            pairs = LABEL.findall(labels or "")
            assert "".join(f'{k}="{v}",' for k, v in pairs).rstrip(",") == labels
            key = tuple(
                (k, re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), v))
                for k, v in pairs
            )
            assert key not in found[name]["samples"]
            found[name]["samples"][key] = float(value)
    return found


def summary_of(toy, **more):
    plan = make_plan(toy(world=3, iterations=range(6)))
    times = {}
    for rank, program in plan.programs.items():
        issue = 1000 * np.arange(len(program), dtype=np.int64)
        times[rank] = Timing(
            operation=program.operation,
            issue=issue,
            start=issue,
            end=issue + 400 + rank,
            due=issue - 50,
        )
    measured = measure(plan, times)
    found = audit(
        plan,
        times,
        measured,
        baselines=Baselines(bound_s=plan.bottleneck_bytes / 1e9, bound_of="x"),
    )
    return plan, summarize(
        plan,
        measured,
        backend="gloo",
        nodes=["a"] * 3,
        verified="full",
        fidelity=found,
    )


def test_every_metric_has_help_type_and_its_unit_in_its_name(toy, tmp_path):
    plan, summary = summary_of(toy)
    path = tmp_path / "run.prom"
    write_metrics(path, result_metrics(summary), 'odd "name"\\ \n.h5')
    found = parsed(path.read_text())
    families = {f.name: f for f in text_string_to_metric_families(path.read_text())}
    assert families.keys() == found.keys()
    for name, family in families.items():
        by_library = {frozenset(s.labels.items()): s.value for s in family.samples}
        mine = found[name]["samples"].items()
        assert by_library == {frozenset(key): value for key, value in mine}
    for name, metric in found.items():
        assert name.startswith(f"{PREFIX}_")
        assert name.endswith(UNITS) or name.endswith(COUNTS), name
        assert metric["help"].endswith(".")
        assert metric["samples"]
        for labels in metric["samples"]:
            assert dict(labels)["trace"] == 'odd "name"\\ \n.h5'

    def one(name: str, **labels: str) -> float:
        (value,) = (
            v
            for key, v in found[f"{PREFIX}_{name}"]["samples"].items()
            if labels.items() <= dict(key).items()
        )
        return value

    assert one("moved_bytes") == plan.total_bytes.sum()
    assert one("rank_sent_bytes", rank="2") == plan.rank_bytes[2]
    assert one("operation_time_seconds", quantile="0.5") == pytest.approx(402e-9)
    assert one("issue_error_seconds", quantile="0.99") == pytest.approx(50e-9)
    assert one("time_over_bound_ratio", by="all", of="value") == pytest.approx(
        summary.fidelity.parts[0].over_bound.value
    )
    assert one("running") == 0
    assert "time_over_model_ratio" not in found  # nothing to hold it against


def test_a_reader_sees_a_whole_file_at_every_moment(tmp_path):
    path = tmp_path / "run.prom"
    seen: list[dict] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            if path.exists():
                seen.append(parsed(path.read_text()))

    reader = threading.Thread(target=read)
    reader.start()
    for value in range(40):
        samples = [({"rank": rank}, float(value)) for rank in range(200)]
        write_metrics(path, [prometheus.metric("ranks", "Ranks.", samples)], "")
    done.set()
    reader.join()
    assert seen
    for found in seen:
        samples = found[f"{PREFIX}_ranks"]["samples"]
        assert len(samples) == 200
        assert len(set(samples.values())) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run.prom"]
    with pytest.raises(ReplayError, match="cannot be written"):
        write_metrics(tmp_path / "none" / "run.prom", [], "")


def test_what_is_not_finite_is_left_out():
    metrics = [gauge("ranks", "Ranks.", float("nan"))]
    assert exposition(metrics, PREFIX, {}) == ""
    counter = gauge("x_total", "a\nb\\", 2.0)
    assert "a\\nb\\\\" in exposition([counter], PREFIX, {})


def beat(
    rank: int, done: int, of: int = 100, stage: str = "replay", **more
) -> Heartbeat:
    fields = {"stage": stage, "done": done, "of": of, **more}
    return Heartbeat(rank=rank, event="step", operation="", fields=fields)


def test_while_it_runs_the_file_says_how_far_each_rank_is(toy, tmp_path, monkeypatch):
    path = tmp_path / "run.prom"
    display = ProgressDisplay(None, path)
    monkeypatch.setattr("moetraffic.replay.results.console._METRICS_EVERY_S", -1.0)
    display.plan(make_plan(toy(world=2), ranks=()))
    display.event(beat(0, 40))
    display.event(beat(1, 10))
    found = parsed(path.read_text())
    told = found[f"{PREFIX}_rank_operations_total"]
    assert told["type"] == "counter"
    assert {dict(k)["rank"]: v for k, v in told["samples"].items()} == {
        "0": 40.0,
        "1": 10.0,
    }
    assert list(found[f"{PREFIX}_running"]["samples"].values()) == [1.0]


def test_a_full_disk_ends_the_metrics_not_the_replay(
    toy, tmp_path: Path, monkeypatch, capsys
):
    display = ProgressDisplay(None, tmp_path / "gone" / "run.prom")
    monkeypatch.setattr("moetraffic.replay.results.console._METRICS_EVERY_S", -1.0)
    display.plan(make_plan(toy(world=2), ranks=()))
    display.event(beat(0, 40))
    display.event(beat(0, 50))
    assert capsys.readouterr().err.count("cannot be written") == 1
    assert display.progress.done_of[0] == 50
