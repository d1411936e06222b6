"""Every format is whole or absent, says what it loses, and is the same again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moetraffic.cli import main
from moetraffic.cli.traces import export as verb
from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.interop.write import (
    EXPORTERS,
    Exporter,
    ExportOptions,
    export_trace,
    exporter_names,
)
from moetraffic.trace import Trace

GOLDEN = path("golden.h5")
SOME = ExportOptions(iterations=range(4, 7))


@pytest.mark.parametrize("exporter", EXPORTERS.values(), ids=EXPORTERS)
def test_exporters_are_described(exporter: Exporter) -> None:
    assert exporter.what
    assert exporter.readers
    assert exporter.limits
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", exporter.name)
    assert bool(exporter.suffix) != exporter.folder


@pytest.mark.parametrize("exporter", EXPORTERS.values(), ids=EXPORTERS)
def test_exports_are_reproducible_and_complete(
    exporter: Exporter, tmp_path: Path
) -> None:
    contents = []
    with Trace.open(GOLDEN) as trace:
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            output = folder / f"run{exporter.suffix}"
            done = export_trace(trace, output, exporter.name, options=SOME)
            assert list(folder.iterdir()) == [output]
            assert all(re.fullmatch(r"\S.*", sentence) for sentence in done.lost)
            if exporter.folder:
                assert all(re.fullmatch(exporter.files, f.name) for f in done.files)
            contents.append([f.read_bytes() for f in done.files])
        assert contents[0]
        assert contents[0] == contents[1]
        with pytest.raises(TraceError, match="not overwritten"):
            export_trace(trace, output, exporter.name, options=SOME)
        with pytest.raises(TraceError) as caught:
            export_trace(
                trace,
                tmp_path / f"empty{exporter.suffix}",
                exporter.name,
                options=ExportOptions(iterations=range(900, 901)),
            )
        assert "\n" not in str(caught.value)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1"]
        export_trace(trace, output, exporter.name, options=SOME, force=True)


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
        "from moetraffic.interop.write import Exporter\n"
        "def write(trace, path, options):\n"
        "    path.write_text(trace.meta.model)\n"
        "    return ['all but the name']\n"
        "EXPORTER = Exporter(name='theirs', what='a name', readers='they',\n"
        "    limits='none', suffix='.txt', write=write)\nODD = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"theirs", "odd"} <= set(exporter_names())
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
            export_trace(trace, output / "thesis.tex", "chakra", force=True)
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
    monkeypatch.setitem(EXPORTERS, "csv", broken)
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
    told = json.loads(capsys.readouterr().out)["tables"]["formats"]
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
    asked += ["--iterations", "5:6", "--layers", "3", "--phase", "dispatch"]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tables"]["files"] == [{"file": str(output)}]
    assert told["data"]["bytes"] == output.stat().st_size
    assert any("rank-local (self) traffic" in sentence for sentence in told["notes"])
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
        (["--to", "csv", "-o", "OUT", "--layers", "2"], "MoE layers are [1, 3]"),
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


@pytest.mark.slow
def test_the_list_needs_neither_torch_nor_pyarrow() -> None:
    code = (
        "import sys; from moetraffic.cli import main; main(['export', '--to', 'list']);"
        "print([m for m in ('torch', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"
