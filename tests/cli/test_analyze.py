"""``moetraffic analyze``: a first screen, all tables, JSON and files of traces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from moetraffic.cli import main
from moetraffic.data import path

from .test_cli import refused

GOLDEN = str(path("golden.h5"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["analyze", *arguments]) == 0
    return capsys.readouterr().out


def test_the_first_screen_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path("golden.h5").parent)
    head, _, *table = printed(capsys, "golden.h5").splitlines()
    assert head.startswith("golden.h5: 12 iterations, 2 MoE layers, 4 experts, top-2,")
    assert max(map(len, table)) <= 80
    end = table.index("")
    assert {"entropy", "busiest expert", "step time"} <= {
        line[8:24].strip() for line in table[:end]
    }
    sentences = [line for line in table[end + 1 :] if not line.startswith("note: ")]
    assert 0 < len(sentences) <= 5


def test_tables_and_only_choose_what_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = printed(capsys, GOLDEN)
    whole = printed(capsys, GOLDEN, "--tables")
    assert whole.startswith(first)
    assert {"stages", "claims", "complexity", "bursts"} <= {*whole.splitlines()}
    (stages,) = [s for s in whole.split("\n\n") if s.startswith("stages\n")]
    assert printed(capsys, GOLDEN, "--only", "stages").strip() == stages
    several = printed(capsys, GOLDEN, GOLDEN, "--only", "claims,stages")
    assert several.count("\nclaims\n") == several.count("\nstages\n") == 2


def test_several_traces_are_shown_one_after_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = str(path("golden-linked.h5"))
    both = printed(capsys, GOLDEN, other)
    assert both == printed(capsys, GOLDEN) + "\n" + printed(capsys, other)
    results = json.loads(printed(capsys, GOLDEN, other, "--json"))["results"]
    assert [result["data"]["file"] for result in results] == [GOLDEN, other]


def test_json_has_all_tables_or_the_chosen_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = json.loads(printed(capsys, GOLDEN, "--json"))
    assert {"measures", "forecasts", "experts", "times", "network"} <= {
        *whole["tables"]
    }
    assert len(whole["verdict"]) <= 5
    chosen = ("--layers", "3", "--iterations", "4:10", "--horizons", "1,2")
    asked = (GOLDEN, *chosen, "--only", "measures", "--json")
    (rows,) = json.loads(printed(capsys, *asked))["tables"].values()
    assert {row["layer"] for row in rows} == {3}
    assert {row["iteration"] for row in rows} == {4, 5, 6, 7, 8, 9}


def test_a_file_has_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "run.csv")
    asked = (GOLDEN, "--only", "stages", "-o", file)
    assert printed(capsys, *asked) == f"written: {file}\n"
    frame = pandas.read_csv(file)
    assert set(frame.measure) >= {"entropy", "busiest_expert", "transfer"}
    assert "not overwritten" in refused(capsys, "analyze", *asked)
    printed(capsys, *asked, "--force")
    document = tmp_path / "run.json"
    shown = printed(capsys, GOLDEN, "-o", str(document))
    assert shown.endswith(f"written: {document}\n")
    assert json.loads(document.read_text())["tables"]["measures"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "entropy"], "a table is one of overview, stages, measures"),
        (["--layers", "2"], "not of [2]: this trace has [1, 3]"),
        (["--phase", "combined"], "'combined' is not one of dispatch"),
        (["--iterations", "90:"], "are none of the 12 training iterations"),
        (["--horizons", "0"], "horizons are iterations ahead"),
        (["--rhythm-by", "node"], "not 'node'"),
        (["--dask", "nowhere"], "listens at HOST:PORT"),
        (["-o", "run.txt"], "file extensions"),
        (["-o", "none/run.csv"], "does not exist"),
        (["none.h5"], "there is no file"),
    ],
)
def test_a_wrong_input_is_one_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "analyze", GOLDEN, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], "scipy pandas torch"),
        (["info", GOLDEN], "scipy statsmodels pandas matplotlib torch"),
        (["analyze", GOLDEN], "statsmodels sklearn pandas matplotlib torch"),
    ],
)
def test_no_package_is_imported_in_vain(arguments: list[str], absent: str) -> None:
    program = (
        "import sys; from moetraffic.cli import main; "
        f"assert main({arguments}) == 0; "
        f"print({{*{absent.split()}}} & {{*sys.modules}}, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stderr.strip() == "set()"
