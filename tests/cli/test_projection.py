"""Projection of a capture, and platforms whose links are measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import moetraffic.data
from moetraffic import Trace
from moetraffic.analysis.times.calibration import step_times
from moetraffic.analysis.times.projection import collectives
from moetraffic.cli import main
from moetraffic.data import published
from moetraffic.patterns import PRESETS
from moetraffic.patterns.bandwidth.measurements import big_red_200
from moetraffic.patterns.time_model import Configuration

GB = 1e9


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main(["estimate", *map(str, arguments), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def bench(path: Path, rates: dict[int, float]) -> Path:
    """Write what moetraffic bench would: bus bandwidths in GB/s by number of ranks."""
    rows = []
    for collective, twice in (("all_reduce", 2), ("all_to_all", 1)):
        for ranks, rate in rates.items():
            for size in (1_000, 1_000_000):
                wire = twice * (ranks - 1) / ranks * size
                rows.append(
                    {
                        "collective": collective,
                        "platform": "here",
                        "protocol": "TCP",
                        "ranks": ranks,
                        "size_bytes": size,
                        "wire_bytes": int(wire),
                        "time_us": wire / (rate * GB) * 1e6,
                    }
                )
    path.write_text(json.dumps({"tables": {"measurements": rows}}))
    return path


def test_a_capture_is_projected_by_the_formula(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    asked = ("--project", captured, "--sizes", "8,16", "--efficiency", "1,0.5")
    found = told(capsys, *asked)["projection"]
    assert isinstance(found, dict)
    compute, sent = found["compute_s"], found["communication_s"]
    assert found["ranks_captured"] == 4
    assert found["iteration_s"] == pytest.approx([compute + sent, compute + 2 * sent])
    throughput = [2 * 1, 4 * (compute + sent) / (compute + 2 * sent)]
    assert found["throughput"] == pytest.approx(throughput)
    with Trace.open(captured) as trace:
        taken = step_times(trace)
        rows = collectives(trace, taken.steps.tolist())
    assert compute == taken.compute_s
    assert {row["operation"] for row in rows} == {
        "all_to_all",
        "all_reduce",
    }


def test_an_efficiency_is_measured_by_bench(
    capsys: pytest.CaptureFixture[str],
    captured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also by a file whose name begins with a digit."""
    file = bench(tmp_path / "200gbe.json", {4: 8.0, 8: 2.0})
    monkeypatch.chdir(tmp_path)
    asked = ("--project", captured, "--sizes", "4,8", "--efficiency", file.name)
    found = told(capsys, *asked)["projection"]
    assert isinstance(found, dict)
    # the same buffers: 7/8 in place of 3/4 of them are sent, at a quarter of the rate
    assert found["efficiency"] == pytest.approx([1.0, (3 / 4) / (7 / 8) / 4], rel=1e-4)
    assert main(["estimate", *map(str, asked[:2]), "--sizes", "16"]) == 2
    assert "needs the network's efficiency" in capsys.readouterr().err


def test_a_platform_may_be_a_file_of_measurements(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = bench(tmp_path / "bench.json", {4: 8.0, 8: 2.0})
    how = ("--model", "gpt-350m", "--dp", 8, "--gpu", "H100")
    found = told(capsys, *how, "--platform", file)["estimate"]
    same = told(capsys, *how, "--bandwidth", file)["estimate"]
    flat = told(capsys, *how, "--bandwidth", "2GB/s")["estimate"]
    monkeypatch.chdir(tmp_path)
    named = ("--bandwidth", file.rename("8gpus.json").name, "--gpus-per-node", 8)
    assert told(capsys, *how, *named)["estimate"] == same
    assert isinstance(found, dict)
    assert isinstance(flat, dict)
    assert found == same
    assert found["dp_s"] == pytest.approx(flat["dp_s"], rel=1e-3)


def test_big_red_200_has_its_measured_links(
    capsys: pytest.CaptureFixture[str],
) -> None:
    how = ("--model", "gpt-350m", "--platform", "big-red-200", "--gradient-dtype", 2)
    found = told(capsys, *how, "--dp", 8)["estimate"]
    assert isinstance(found, dict)
    wire = float(found["sent_bytes"]["dp"])
    size = wire / (2 * 7 / 8)
    took = big_red_200().effective("all_reduce", 8, size, span=2).time_s
    assert found["dp_s"] == pytest.approx(float(took))
    rows = [row for row in published("jia_nccl_tests") if row["gpus"] == "8"]
    slowest = max(float(row["busbw_GBps"]) for row in rows)
    assert wire / found["dp_s"] < 1.02 * slowest * GB
    assert main(["estimate", *map(str, how), "--dp", "16"]) == 2
    assert "all_reduce over 4 nodes is not measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "time_us"),
    [(201326592, 8, 37054), (201326592, 4, 1470.5), (16777216, 8, 2990.5)],
)
def test_a_published_table_is_a_measured_bandwidth(
    capsys: pytest.CaptureFixture[str], size_bytes: int, ranks: int, time_us: float
) -> None:
    # its columns are nodes and gpus; the gradient is as large as one of its messages
    table = Path(moetraffic.data.__file__).with_name("jia_nccl_tests.csv")
    element = size_bytes / float(Configuration(model=PRESETS["gpt-350m"].model).held)
    how = ("--model", "gpt-350m", "--bandwidth", table, "--gpus-per-node", 4)
    found = told(capsys, *how, "--dp", ranks, "--gradient-dtype", element)["estimate"]
    assert isinstance(found, dict)
    assert found["dp_s"] == pytest.approx(time_us * 1e-6, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--platform", "no.json", "--dp", "2"), "cannot be read"),
        (("--platform", "tg40", "--gpu", "H100"), "--platform and --gpu give the same"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main(["estimate", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--efficiency", "0.5,0.4,0.3"), "one for each of --sizes"),
        (("--efficiency", "0"), "efficiencies are numbers above 0"),
        (("--efficiency", "0.5", "--dp", "2"), "--project and --dp give the same"),
    ],
)
def test_a_projection_refuses_what_it_cannot_use(
    capsys: pytest.CaptureFixture[str],
    captured: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    asked = ["estimate", "--project", str(captured), "--sizes", "8,16", *arguments]
    assert main(asked) == 2
    assert words in capsys.readouterr().err
