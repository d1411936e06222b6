"""Studies told: cells as written, pictures of what can be drawn, the commands."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from moetraffic.cli import main
from moetraffic.report.results import study as report
from moetraffic.studies import Study, reproduce, there
from moetraffic.tables import Table


@pytest.fixture(scope="module")
def small() -> Study:
    rows = tuple((f"case {n}", n % 3, 0.1 * n, 0.1 * n + 0.01, 0.01) for n in range(5))
    columns = ("case", "kind", "published [us]", "ours", "error")
    many = tuple((f"{n % 2}", 1.0 * n, 1.1 * n) for n in range(1, 30))
    return Study(
        name="small",
        title="A small one",
        source="somebody, 2024",
        tables=(
            Table(title="By row", columns=columns, rows=rows, unit="s"),
            Table(title="Many", columns=("of", "published", "ours"), rows=many),
            Table(
                title="Over size",
                columns=("size", "published", "ours, one", "ours, two"),
                rows=tuple((10**n, n + 1.0, n + 1.1, None) for n in range(5)),
            ),
            Table(title="Nothing", columns=("of", "ours"), rows=(("a", 1),)),
        ),
        not_reproducible=("this, because of that",),
        notes=(),
    )


def test_every_cell_of_a_study_is_told(small):
    paper = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    paper.print(*report.sentences(small), *report.tables(small))
    said = paper.export_text()
    for word in (
        "case 4",
        "published [us]",
        "0.41",
        "+1.0%",
        "somebody, 2024",
        "this, because of that",
    ):
        assert word in said
    assert report.as_dict(small)["tables"][0]["rows"][4][0] == "case 4"


def test_reproduce_prints_writes_and_does_not_overwrite(tmp_path, capsys):
    out = tmp_path / "studies"
    assert main(["reproduce", "gpt350m"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 8
    assert any("of 24 published values" in line for line in lines)
    assert main(["reproduce", "gpt350m", "-o", str(out), "--tables"]) == 0
    said = capsys.readouterr().out
    for word in ("9.879", "105", "32 MiB, 64 MiB", "not reproducible", "11.29"):
        assert word in said
    told = json.loads((out / "gpt350m.json").read_text())
    assert told["name"] == "gpt350m"
    assert len(list(out.glob("gpt350m-*.png"))) == 4
    only = ["--only", "gpt350m", "-o", str(tmp_path / "only")]
    capsys.readouterr()
    assert main(["reproduce", "gpt350m", *only]) == 0
    assert capsys.readouterr().out.startswith("written: ")
    assert main(["reproduce", "gpt350m", "-o", str(out)]) == 2
    assert "is not overwritten" in capsys.readouterr().err
    assert main(["reproduce", "gpt35m"]) == 2
    assert "did you mean gpt350m" in capsys.readouterr().err


def test_reproduce_merced_prints_json(capsys):
    assert main(["reproduce", "merced", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tables"][0]["rows"][0][2] == pytest.approx(2.486, abs=0.001)


def test_every_study_can_be_told_and_drawn():
    for name in there():
        study = reproduce(name)
        drawn = [report.figure(study, t) for t in study.tables if report.drawable(t)]
        # a heatmap is what APNet'24 publishes, and no figure beside ours in a table
        assert drawn or name == "apnet24"


def test_bandwidths_are_read_asked_and_drawn(tmp_path, capsys):
    picture = tmp_path / "bw.png"
    asked = ["bandwidth", "big-red-200", "--collective", "all_reduce", "--ranks", "8"]
    more = ["--span", "2", "--size", "16777216", "--plot", str(picture)]
    assert main([*asked, *more, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answer"]["time_us"] == pytest.approx(2990.5)
    assert told["answer"]["measured_around"] is True
    assert [c["outlier_bytes"] for c in told["curves"]] == [[2**25, 2**26], []]
    assert picture.stat().st_size > 5000
    assert main(["bandwidth", "--collective", "all_reduce"]) == 2
    assert capsys.readouterr().err.endswith(
        "but none is named: name its file, or big-red-200\n"
    )
    assert main(["bandwidth"]) == 0
    assert "polaris" in capsys.readouterr().out
    assert main([*asked, *more]) == 2  # the picture is not overwritten
    assert main(asked) == 2
    assert "--platform, --protocol and --span" in capsys.readouterr().err
    assert main(["bandwidth", str(tmp_path / "none.csv")]) == 2
