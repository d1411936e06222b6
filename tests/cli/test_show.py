"""What verbs print and write of their results."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

from moetraffic.cli.show import LONGEST, show
from moetraffic.errors import AnalysisError
from moetraffic.report.write import validate, write
from moetraffic.result import Result


def result(file: str = "run.h5") -> Result:
    return Result(
        verb="analyze",
        head=f"{file}: 3 iterations",
        tables={
            "stages": [{"layer": 1, "entropy": 0.5}],
            "experts": [{"layer": n, "module": "=1+1\x1b"} for n in range(150)],
            "claims": [],
        },
        screen=("stages",),
        verdict=("Load became more even.",),
        data={"file": file},
    )


def test_the_first_screen_and_what_options_ask_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(result())
    first = capsys.readouterr().out
    assert first.splitlines()[0] == "run.h5: 3 iterations"
    assert first.endswith("Load became more even.\n")
    assert "experts" not in first
    show(result(), tables=True)
    whole = capsys.readouterr().out
    assert whole.startswith(first)
    assert f"({150 - LONGEST} more rows: --only experts)" in whole
    assert "claims: no row" in whole
    show(result(), only="experts")
    rows = capsys.readouterr().out.splitlines()
    assert rows[:2] == ["", "experts"]
    assert len(rows) == 153
    assert rows[-1].endswith(r"=1+1\x1b")
    with pytest.raises(AnalysisError, match="did you mean experts"):
        show(result(), only="expert")


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    show(result(), as_json=True, only="stages")
    one = json.loads(capsys.readouterr().out)
    assert one["tables"] == {"stages": [{"layer": 1, "entropy": 0.5}]}
    show(result(), result("other.h5"), as_json=True)
    several = json.loads(capsys.readouterr().out)
    assert several["schema_version"] == one["schema_version"]
    assert [r["data"]["file"] for r in several["results"]] == ["run.h5", "other.h5"]
    assert [*several["results"][0]["tables"]] == ["stages", "experts", "claims"]


def test_tables_are_written_once_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [result(), result("other.h5")]
    show(*both, output=tmp_path / "all.csv", only="stages,experts")
    printed = capsys.readouterr().out.replace("\n", "")
    assert printed.startswith("written: ")
    assert {p.name for p in tmp_path.iterdir()} == {"all.stages.csv", "all.experts.csv"}
    frame = pandas.read_csv(tmp_path / "all.stages.csv")
    assert frame.columns.tolist() == ["file", "layer", "entropy"]
    assert frame.file.tolist() == ["run.h5", "other.h5"]
    write([result()], tmp_path / "one.parquet", names=["experts"])
    assert len(pandas.read_parquet(tmp_path / "one.parquet")) == 150
    write([result()], tmp_path / "run.xlsx", names=["stages", "experts", "claims"])
    sheets = pandas.read_excel(tmp_path / "run.xlsx", sheet_name=None)
    assert [*sheets] == ["stages", "experts"]
    # text of a trace is neither a formula nor a control character
    assert sheets["experts"].module[0] == r"'=1+1\x1b"
    write([result()], tmp_path / "run.json", names=["stages"])
    assert json.loads((tmp_path / "run.json").read_text())["head"] == result().head


def test_nothing_is_overwritten_or_empty(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    (tmp_path / "run.stages.csv").write_text("mine")
    with pytest.raises(AnalysisError, match="not overwritten"):
        write([result()], file, names=["stages", "experts"])
    assert [p.name for p in tmp_path.iterdir()] == ["run.stages.csv"]
    assert len(write([result()], file, names=["stages", "experts"], force=True)) == 2
    with pytest.raises(AnalysisError, match="holds tables"):
        write([result()], file, names=["claims"])
    with pytest.raises(AnalysisError, match="file extensions"):
        validate(tmp_path / "run.txt", force=False)
