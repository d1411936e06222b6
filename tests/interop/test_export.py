"""Every format is whole or absent, says what it loses, and is the same again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moetraffic.cli import main
from moetraffic.cli.traces import export as verb
from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.interop.export import (
    EXPORTERS,
    Exporter,
    ExportOptions,
    check_exporter,
    export_trace,
    known_exporters,
    registry,
)
from moetraffic.trace import Trace

GOLDEN = path("golden-v1.h5")
SOME = ExportOptions(iterations=range(4, 7))


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_exporter_keeps_the_rules(name: str, tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        check_exporter(EXPORTERS[name], trace, tmp_path, options=SOME)


def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    def made(**more: Any) -> Exporter:
        about = {"what": "w", "readers": "r", "limits": "l", "suffix": ".x"}
        return Exporter(**{"name": "mine", **about, "write": write, **more})

    def write(trace: Trace, to: Path, options: ExportOptions) -> list[str]:
        to.write_text("always the same")
        return []

    def untidy(trace: Trace, to: Path, options: ExportOptions) -> list[str]:
        to.parent.parent.joinpath("beside").write_text("")
        return write(trace, to, options)

    def wordy(trace: Trace, to: Path, options: ExportOptions) -> list[str]:
        return [*write(trace, to, options), "two\nlines"]

    cases = [
        (made(), "a selection without a call is refused"),
        (made(name="My Own"), "lower case with hyphens"),
        (made(suffix=""), "a file with a suffix, or a folder"),
        (made(readers=" "), "says its readers"),
        (made(write=untidy), "nothing is written but the output"),
        (made(write=wordy), "in sentences of one line"),
    ]
    with Trace.open(GOLDEN) as trace:
        for number, (exporter, said) in enumerate(cases):
            folder = tmp_path / str(number)
            folder.mkdir()
            with pytest.raises(AssertionError, match=said):
                check_exporter(exporter, trace, folder)


def test_an_installed_package_adds_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[moetraffic.exporters]\ntheirs = theirs:EXPORTER\nodd = theirs:ODD\n"
    )
    (tmp_path / "theirs.py").write_text(
        "from moetraffic.interop.export import Exporter\n"
        "def write(trace, path, options):\n"
        "    path.write_text(trace.meta.model)\n"
        "    return ['all but the name']\n"
        "EXPORTER = Exporter(name='theirs', what='a name', readers='they',\n"
        "    limits='none', suffix='.txt', write=write)\nODD = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"theirs", "odd"} <= set(known_exporters())
    with Trace.open(GOLDEN) as trace:
        done = export_trace(trace, tmp_path / "a.txt", "theirs")
        assert done.files[0].read_text() == "moe-gpt"
        assert done.lost == ("all but the name",)
        with pytest.raises(TraceError, match="theirs:ODD is a int"):
            export_trace(trace, tmp_path / "b.txt", "odd")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"phase": "scatter"}, "phase is one of dispatch"),
        ({"of": "bytes"}, "of is one of wire, demand"),
        ({"pace": "scaled"}, "pace is one of captured, asap"),
        ({"every_ns": -1}, "but every is -1 ns"),
    ],
)
def test_options_that_nothing_knows_are_refused(told: Any, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        ExportOptions(**told)


def test_a_folder_with_anything_else_in_it_is_never_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with Trace.open(GOLDEN) as trace:
        first = export_trace(trace, output, "nccl-tests", options=SOME)
        # fewer files now: what the first left is gone
        again = export_trace(
            trace,
            output,
            "nccl-tests",
            options=ExportOptions(iterations=range(4, 5)),
            force=True,
        )
        assert len(first.files) > len(again.files) == len(list(output.iterdir()))
        (output / "thesis.tex").write_text("years of work")
        with pytest.raises(TraceError, match=r"holds 'thesis\.tex'"):
            export_trace(trace, output, "nccl-tests", options=SOME, force=True)
        with pytest.raises(TraceError, match="is a file"):
            export_trace(trace, output / "thesis.tex", "param", force=True)
    assert (output / "thesis.tex").read_text() == "years of work"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_fails_half_way_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(trace: Trace, to: Path, options: ExportOptions) -> list[str]:
        to.write_text("half")
        raise OSError(28, "No space left on device")

    broken = Exporter(
        name="csv", what="w", readers="r", limits="l", suffix=".csv", write=fails
    )
    output = tmp_path / "run.csv"
    output.write_text("before")
    monkeypatch.setitem(registry.EXPORTERS, "csv", broken)
    with (
        Trace.open(GOLDEN) as trace,
        pytest.raises(TraceError, match=r"No space left on device\): make room"),
    ):
        export_trace(trace, output, "csv", force=True)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [
        ("run.csv", "before")
    ]


# ---- the command line -------------------------------------------------------------


def test_the_list_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--to", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["format"] for one in told] == list(EXPORTERS)
    assert all(one["read_by"] and one["limits"] and one["output"] for one in told)
    assert verb.FORMATS.split(", ") == list(EXPORTERS)
    assert main(["export"]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out


def test_export_says_what_it_wrote_and_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run.cm"
    asked = ["export", str(GOLDEN), "--to", "htsim", "-o", str(output)]
    asked += ["--iterations", "5:6", "--layer", "3", "--phase", "dispatch"]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == [str(output)]
    assert told["bytes"] == output.stat().st_size
    assert any("rank-local (self) traffic" in sentence for sentence in told["lost"])
    assert main(asked) == 2
    assert "give --force" in capsys.readouterr().err
    assert main([*asked, "--force"]) == 0
    assert "note: computation is left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "pcap", "-o", "OUT"], "a format is one of perfetto"),
        (["--to", "csv"], "an output with -o is not given"),
        (["--to", "csv", "-o", "nowhere/OUT"], "make it first"),
        (["--to", "csv", "-o", "OUT", "--every", "0s"], "at least 1 ns"),
        (["--to", "csv", "-o", "OUT", "--layer", "2"], "MoE layers are [1, 3]"),
        (["--to", "nccl-tests", "-o", "OUT", "--unit", "MB"], "change --unit"),
        (["--to", "hpcc", "-o", "OUT", "--pace", "asap"], "with --every"),
    ],
)
def test_wrong_use_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(GOLDEN), *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_list_needs_neither_torch_nor_pyarrow() -> None:
    code = (
        "import sys; from moetraffic.cli import main; main(['export', '--to', 'list']);"
        "print([m for m in ('torch', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"
