"""``moetraffic analyze``: the answer first, and without what it does not need."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moetraffic.analysis import PARTS
from moetraffic.analysis import analyze as analysis_of
from moetraffic.analysis.engine import SUMMARY_PARTS
from moetraffic.cli import main
from moetraffic.cli.analysis import analyze as verb
from moetraffic.data import path
from moetraffic.trace import Trace
from tests.cli.printed import unwrapped

GOLDEN = str(path("golden.h5"))

HEAVY = ("statsmodels", "sklearn", "scipy.stats", "pandas", "matplotlib", "numba")


def test_the_summary_comes_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["analyze", GOLDEN]) == 0
    lines = unwrapped(capsys.readouterr().out).splitlines()
    assert 3 <= len(lines) <= 8
    assert lines[0].startswith("Data: ")
    assert lines[1].startswith("Skew: ")
    # a long path is named once, and a variable stands for it
    assert re.search(r"moetraffic analyze \S+ --tables", lines[-1])
    assert GOLDEN in lines[-1]
    monkeypatch.chdir(path("golden.h5").parent)
    assert main(["analyze", "golden.h5"]) == 0
    assert unwrapped(capsys.readouterr().out).splitlines() == [
        *lines[:-1],
        "Next: moetraffic analyze golden.h5 --tables (each layer); moetraffic "
        "evaluate golden.h5 (circuits); moetraffic report golden.h5 (charts)",
    ]
    asked = ["--layers", "1", "--iterations", "2:", "--phase", "combine"]
    assert main(["analyze", "golden.h5", *asked]) == 0
    last = unwrapped(capsys.readouterr().out).splitlines()[-1]
    assert last.count(" ".join(asked)) == 3
    assert main(["analyze", GOLDEN, "--tables"]) == 0
    everything = unwrapped(capsys.readouterr().out)
    assert everything.splitlines()[: len(lines)] == lines
    assert main(["analyze", GOLDEN, "--only", "skew"]) == 0
    skew = unwrapped(capsys.readouterr().out)
    assert "Load skew" in skew
    assert "Data: " not in skew
    assert "Convergence and hot" not in skew
    assert "Convergence and hot" in everything


@pytest.mark.slow
def test_the_summary_imports_no_heavy_package() -> None:
    program = (
        "import sys; from moetraffic.cli import main; "
        f"assert main(['analyze', {GOLDEN!r}]) == 0; "
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stderr.strip() == "[]"


def test_json_and_files_have_all_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all.json"
    assert main(["analyze", GOLDEN, "-o", str(out)]) == 0
    capsys.readouterr()
    found = json.loads(out.read_text())
    for exchange in found["exchanges"]:
        assert exchange["statistics"]["expert_load"]["skew"]
        assert exchange["convergence"]
    assert found["summary"]


def test_only_takes_the_parts_of_an_analysis(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert verb.PARTS == PARTS
    assert main(["analyze", GOLDEN, "--only", "skew,entropy"]) == 2
    assert "'entropy' is none of these" in capsys.readouterr().err
    assert main(["analyze", GOLDEN, "--only", "skew"]) == 0
    skew = capsys.readouterr().out
    assert main(["analyze", GOLDEN, "--only", "skew", "--tables"]) == 0
    assert capsys.readouterr().out == skew


@pytest.mark.parametrize("parts", ["skew", "claims", "convergence,complexity"])
def test_a_file_replaces_the_tables_of_parts(
    parts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["analyze", GOLDEN, "--only", parts]
    assert main(asked) == 0
    assert capsys.readouterr().out.count("\n") > 1
    file = tmp_path / "found.json"
    assert main([*asked, "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"written: {file}\n"


def test_a_trace_without_demand_is_judged_by_its_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for options in ((), ("--tables",)):
        assert main(["analyze", GOLDEN, "--of", "wire", *options]) == 0
        shown = capsys.readouterr().out
        assert "experts unknown: bytes received by 2 ranks" in shown
        assert "needs about " in shown.partition("Undecided: ")[2]
    assert "bytes received, dispatch of layer 1" in shown
    assert "expert load of" not in shown


@pytest.mark.parametrize("of", [("demand", "wire"), ("wire",)])
def test_the_claims_of_the_summary_are_those_of_all_parts(of: tuple[str, ...]) -> None:
    """The summary reads less, and states the same."""
    with Trace.open(GOLDEN) as trace:
        short = analysis_of(trace, of=of, parts=SUMMARY_PARTS)
        whole = analysis_of(trace, of=of)
    assert [str(c) for c in short.claims] == [str(c) for c in whole.claims]
    for one, other in zip(short.exchanges, whole.exchanges, strict=True):
        assert one.figures == other.figures
