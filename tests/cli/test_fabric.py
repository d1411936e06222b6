from __future__ import annotations

import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas
import pytest

from moetraffic import Trace
from moetraffic.analysis.times.traffic import world_matrices
from moetraffic.cli import main
from moetraffic.fabric import Hosts, assess, torus


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main([*map(str, arguments)]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)["data"]
    return found


def test_a_capture_on_one_switch_is_its_line_sums(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    asked = ("fabric", captured, "--topology", "single", "--json")
    found = told(capsys, *asked, "--capacity", "8GB/s", "--iterations", "2:7")
    with Trace.open(captured) as trace:
        sent = world_matrices(trace, range(2, 7)).astype(float)
    line = np.maximum(sent.sum(axis=1).max(axis=1), sent.sum(axis=2).max(axis=1))
    assert found["iterations"] == [2, 3, 4, 5, 6]
    assert found["bottleneck_s"] == pytest.approx(line / 8e9)
    assert found["bounds_s"]["port"] == pytest.approx(found["bottleneck_s"])
    assert found["bytes_between_hosts"] == pytest.approx(sent.sum(axis=(1, 2)))


def test_oversubscription_makes_the_same_bytes_slower(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    asked = ("fabric", captured, "--routing", "ideal", "--json", "--spines", 2)
    once = told(capsys, *asked, "--oversubscription", 1)
    fourfold = told(capsys, *asked, "--oversubscription", 4)
    assert fourfold["bounds_s"]["cut leaf"] == pytest.approx(
        4 * np.array(once["bounds_s"]["cut leaf"])
    )
    assert fourfold["bounds_s"]["port"] == once["bounds_s"]["port"]
    assert fourfold["bottleneck_s"] == pytest.approx(fourfold["even_split_s"])


def test_ratios_of_oversubscription_are_compared(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    """A list has the figures of each ratio alone, and one table and chart of all."""
    asked = ("fabric", captured, "--spines", 2, "--iterations", "2:5")
    table, picture = tmp_path / "loads.csv", tmp_path / "ratios.png"
    files = ("-o", table, "--only", "loads", "--plot", picture, "--json")
    several = told(capsys, *asked, *files, "--oversubscription", "1,2,4")["networks"]
    alone = {
        str(ratio): told(capsys, *asked, "--json", "--oversubscription", ratio)
        for ratio in (1, 2, 4)
    }
    assert several == alone
    written = pandas.read_csv(table)
    assert written.groupby("oversubscription").time_s.max().tolist() == pytest.approx(
        [max(one["bottleneck_s"]) for one in alone.values()]
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    # a single ratio, even twice, has its own answer
    assert main([*map(str, asked), "--oversubscription", "4,4.0"]) == 0
    assert "slowest link" in capsys.readouterr().out


def test_failures_are_a_table(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    asked = ["fabric", str(captured), "--spines", "2", "--iterations", "2:5"]
    assert main([*asked, "--fail", "each", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["failures"]
    assert len(rows) == 4
    assert min(row["over_intact"] for row in rows) > 1
    assert main([*asked, "--fail", "leaf0 -> spine1"]) == 0
    assert "Worst failure: leaf0 -> spine1" in capsys.readouterr().out
    assert main([*asked, "--fail", "spine7"]) == 2
    assert "there is no link 'spine7'" in capsys.readouterr().err


def test_the_picture_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "links.png"
    asked = ["fabric", str(captured), "--plot", str(picture)]
    assert main(asked) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(asked) == 2
    assert "give --force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--capacity", "400"], "a rate is a positive number with a unit"),
        (["--capacity", "400gbps"], "a rate is a positive number with a unit"),
        (["--topology", "hypercube"], "single, leaf-spine"),
        (["--topology", "torus", "--spines", "2"], "leave out --spines"),
        (["--topology", "torus", "--shape", "4x"], "numbers with x between"),
        (["--topology", "dragonfly"], "hosts a router"),
        (["--topology", "fat-tree", "--ports", "3"], "even number of ports"),
        (["--leaves", "3"], "choose a divisor of 4"),
        (["--oversubscription", "1,two"], "ratios with commas between, not '1,two'"),
        (["--oversubscription", "1,nan"], "ratios with commas between, not '1,nan'"),
        (["--oversubscription", "1,0"], "a number above 0, or 1,2,4"),
        (["--topology", "single", "--oversubscription", "1,2"], "leave out --overs"),
        (["--hosts", "2"], "room for 2, but there are 4 ranks"),
        (["--slots", "0,1"], "4 slots with commas"),
        (["--slots", "0,0,1,2"], "a slot of its own"),
        (["--routing", "valiant"], "ecmp, ideal, shortest"),
        (["--flows", "0"], "'--flows'"),
        (["--topology", "torus", "--shape", "3x3"], "is for 9 hosts, and there are 4"),
        (
            [
                *("--topology", "rails", "--ranks-per-host", "2"),
                *("--oversubscription", "1,4"),
            ],
            "All 2 hosts share one pod, so no bytes cross a spine: give --leaves 2",
        ),
        (
            ["--ranks-per-host", "4", "--oversubscription", "1,4"],
            "All ranks share a host, so none uses a spine: lower --ranks-per-host",
        ),
        (["--iterations", "900:"], "has none in 900:"),
        (["--operations", "gossip"], "all_reduce"),
        (["--ranks-per-host", "0"], "at least 1"),
        (["--hot", "0"], "'--hot'"),
        (["--plot", "nowhere/links.png"], "does not exist"),
    ],
)
def test_impossible_fabrics(
    capsys: pytest.CaptureFixture[str],
    captured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fabric", str(captured), *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_range_beyond_the_trace_is_named(
    capsys: pytest.CaptureFixture[str], captured: Path
) -> None:
    with Trace.open(captured) as trace:
        there = trace.iterations.tolist()
    last = there[-1]
    note = f"note: iterations 2:400 go beyond the last one, {last}: 2:{last + 1} are"
    for asked, beyond in (
        ("2:400", True),
        ("2:", False),
        (f"2:{there[-1] + 1}", False),
    ):
        assert main(["fabric", str(captured), "--iterations", asked]) == 0
        out = capsys.readouterr().out
        assert (note in " ".join(out.split())) == beyond
        assert ("beyond" in out) == beyond


def test_loads_of_links_are_written_as_a_table(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    """As the Python API has them, and in JSON with the rates of the summary."""
    table, picture = tmp_path / "loads.csv", tmp_path / "links.png"
    shape = ("--topology", "torus", "--shape", "4", "--iterations", "2:5")
    files = ("-o", table, "--only", "loads", "--plot", picture, "--width", "3in")
    made = told(capsys, "fabric", captured, *shape, *files, "--json")["network"]
    assert isinstance(made, dict)
    assert (made["nic_bytes_s"], made["link_bytes_s"]) == (100e9, 50e9)
    network = torus(Hosts(number=4, nic_bytes_s=50e9), shape=(4,))
    loads = assess(network, world_matrices(captured, "2:5")).frame("loads")
    written = pandas.read_csv(table)
    assert written.iteration.tolist() == (loads.iteration + 2).tolist()
    for name in ("link", "bytes"):
        assert written[name].tolist() == loads[name].tolist()
    assert matplotlib.image.imread(picture).shape[1] == 3 * 150
    assert main(["fabric", str(captured), "-o", str(tmp_path / "loads.txt")]) == 2
    assert "results are written as .json, .csv" in capsys.readouterr().err


@pytest.mark.parametrize("demand", ["line", "rate", "scaled"])
def test_time_shifts_of_two_runs(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path, demand: str
) -> None:
    """A run beside itself: equal periods, and shifts that are never worse than none."""
    asked = ["schedule", str(captured), str(captured), "--demand", demand]
    path = tmp_path / "shifts.json"
    picture = tmp_path / "jobs.png"
    files = ["-o", str(path), "--plot", str(picture)]
    assert main([*asked, *files]) == 0
    said = capsys.readouterr().out
    assert "Compatibility" in said
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(path.read_text())["data"]
    assert found["capacity_bytes_s"] == 50e9
    assert found["score_worst"] <= found["score_unshifted"] <= found["score"] <= 1
    first, second = found["jobs"]
    assert first["shift_s"] == 0
    assert 0 <= second["shift_s"] < second["period_s"]
    assert first["period_s"] == second["period_s"]
    assert first["on_circle"] == 1
    rates = np.array(first["rate_bytes_s"])
    assert 0 <= rates.min() < rates.max()
    if demand != "rate":
        assert rates.max() <= 50e9 * (1 + 1e-9)
    if demand == "line":  # both on at once: whatever one sends, the other sends too
        excess = np.maximum(2 * rates - 50e9, 0).mean() / 50e9
        assert found["score_unshifted"] == pytest.approx(1 - excess)
    assert main([*asked, *files]) == 2
    assert "give --force" in capsys.readouterr().err


@pytest.mark.parametrize("matrices", ["mean", "3"])
def test_circuits_serve_a_run(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path, matrices: str
) -> None:
    path = tmp_path / "circuits.json"
    asked = ["schedule", str(captured), "--matrices", matrices, "--layers", "1"]
    asked += ["--capacity", "8Gbps", "--reconfigure", "10us", "-o", str(path)]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "max-min matching" in said
    (exchange,) = json.loads(path.read_text())["data"]["exchanges"]
    assert (exchange["layer"], exchange["exchange"]) == (1, "dispatch")
    assert len(exchange["schedules"]) == (1 if matrices == "mean" else 3)
    with Trace.open(captured) as trace:
        sites = trace.find(operation="all_to_all", phase="dispatch", layer=1)
        wire = trace.wire(sites)
    single = exchange["single_lower_bound_s"]
    if matrices == "mean":
        sent = wire * ~np.eye(4, dtype=bool)
        own = np.maximum(sent.sum(axis=1).max(axis=1), sent.sum(axis=2).max(axis=1))
        own = own / 1e9
        assert single == pytest.approx(np.mean(own))
        assert single >= exchange["schedules"][0]["bound_s"] * (1 - 1e-6)
    else:
        assert single is None
    for at, one in zip((0, len(wire) // 2, -1), exchange["schedules"], strict=False):
        served = np.zeros((4, 4), np.int64)
        for term in one["terms"]:
            served[np.arange(4), term["to"]] += np.array(term["bytes"])
        want = wire.mean(axis=0).round() if matrices == "mean" else wire[at]
        if matrices == "mean" or at != len(wire) // 2:
            assert (served == want * (1 - np.eye(4))).all()
        assert one["sending_s"] >= one["bound_s"] * (1 - 1e-9)
        assert one["reconfiguring_s"] == pytest.approx(10e-6 * one["circuits"])
        assert one["coverage"][-1] == 1.0
        assert 1 <= one["terms_50"] <= one["terms_99"]


@pytest.mark.parametrize(
    ("several", "arguments", "said"),
    [
        (False, ["--reconfigure", "10"], "a time is a number of 0 or more"),
        (False, ["--matching", "best"], "max-min, halving"),
        (False, ["--matrices", "all"], "matrices are mean or"),
        (False, ["--phase", "forward"], "not one of dispatch"),
        (False, ["--layers", "7"], "are [1, 3], not [7]: choose among"),
        (False, ["--matrices", "0"], "raise --matrices"),
        (False, ["--plot", "jobs.png"], "the picture is of jobs on one link"),
        (True, ["--demand", "half"], "line, rate, scaled"),
        (True, ["--tolerance", "0.7"], "below 0.5"),
        (True, ["--iterations", "900:"], "all-to-alls whose times are known"),
    ],
)
def test_impossible_schedules(
    capsys: pytest.CaptureFixture[str],
    captured: Path,
    several: bool,
    arguments: list[str],
    said: str,
) -> None:
    assert main(["schedule", *[str(captured)] * (1 + several), *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_network_of_links_with_different_rates_is_read_from_a_file(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    """The example of the page: a slow NIC and a slow uplink make the time theirs."""
    page = (Path(__file__).parents[2] / "docs" / "fabric.md").read_text()
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    file = tmp_path / "net.fabric"  # of any name, as for load_fabric

    def slowest(rates: dict[str, str]) -> dict[str, float]:
        file.write_text(json.dumps({**example, "rates": rates}))
        asked = ["fabric", str(captured), "--topology", str(file), "--hot", "99"]
        assert main([*asked, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["tables"]["links"]
        return {row["link"]: row["mean_s"] for row in rows}

    same, rated = slowest({}), slowest(example["rates"])
    ratio = {name: rated[name] / same[name] for name in rated}
    assert ratio.pop("leaf0 -> spine0") == pytest.approx(4)  # 50 of 200 Gbps
    for name in ("host1.nic0 -> leaf0", "leaf0 -> host1.nic0"):
        assert ratio.pop(name) == pytest.approx(4)
    assert list(ratio.values()) == pytest.approx([1] * len(ratio))
    table = tmp_path / "run.toml"  # which serves other runs, too
    table.write_text("[fabric]\noversubscription = 4\n")
    asked = ["fabric", str(captured), "--topology", str(file)]
    assert main(["--config", str(table), *asked]) == 0
    assert main([*asked, "--hosts", "4"]) == 2
    assert "describes the whole network, but --hosts is" in capsys.readouterr().err
