"""Text of a trace is data: no verb interprets it or sends it to a terminal raw."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moetraffic.cli import main
from moetraffic.data import path as shipped
from moetraffic.text import visible
from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace

HOSTILE = (
    "[/x]",
    "[link=x]",
    "\x1b[31m\x1b]0;x\x07",
    "a\u202eb\u2066c",
    "<script>alert(1)</script>",
    "$\\frac{$",
)
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069]"
)
KEPT = {"origin", "order", "moetraffic", "workload", "dispatch", "dtype"}
"""Fields of a trace's metadata whose values a reader checks."""


def with_text(text: str, path: Path, *, operations: bool = False) -> Path:
    """Write the golden trace with a text in place of all its strings."""
    with Trace.open(shipped("golden.h5")) as trace:
        fields = trace.meta.as_dict()
        strings = {
            name: text
            for name, value in fields.items()
            if isinstance(value, str) and name not in KEPT
        }
        nodes = (text,) * trace.meta.world
        keep = (ALL_TO_ALL, ROUTING) if operations else ()
        sites = tuple(
            replace(
                site,
                label=text,
                operation=text
                if operations and site.operation not in keep
                else site.operation,
            )
            for site in trace.sites
        )
        hostile = trace.replaced(
            meta=replace(trace.meta, **strings, nodes=nodes, complete=False),
            groups=tuple(replace(group, kind=text) for group in trace.groups),
            sites=sites,
        )
        hostile.save(path)
    return path


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
    given = [str(argument) for argument in arguments]
    if given[0] == "replay":  # starts a program in place of this one
        command = [sys.executable, "-m", "moetraffic", *given]
        ran = subprocess.run(command, capture_output=True, text=True)
        code, out, err = ran.returncode, ran.stdout, ran.stderr
    else:
        code = main(given)
        out, err = capsys.readouterr()
    assert code in (0, 2), (arguments, err)
    assert not RAW.search(out + err), (arguments, RAW.search(out + err))
    assert "Traceback" not in err


QUICK = ("info {0}", "compare {0} {0}", "fabric {0}")

EVERY = (
    *QUICK,
    "info {0} --json",
    "plot {0} -o {1}/pictures",
    "analyze {0} -o {1}/a.csv",
    "report {0} {0} -o {1}/page.html",
    "report {0} -o {1}/other.html",
    "schedule {0}",
    "schedule {0} {0} --plot {1}/jobs.png",
    "place {0} --ep 2 -o {1}/placed.h5",
    "doctor --for {0}",
    "export {0} --anonymous -o {1}/shared.h5",
    "export {0} --to csv -o {1}/out.csv",
    "export {0} --to htsim -o {1}/out.cm",
    "export {0} --to perfetto -o {1}/out.json",
    "generate {0} -o {1}/synthetic.h5 --iterations 4",
    "replay {0} --dry-run",
    "import {0} -o {1}/imported.h5",
    "merge {1} -o {1}/merged.h5",
    "estimate --trace {0}",
)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_text("".join(HOSTILE), tmp_path_factory.mktemp("hostile") / "run.h5")


@pytest.mark.parametrize("verb", QUICK)
def test_verbs_print_text_of_a_trace_as_data(
    capsys: pytest.CaptureFixture[str], everything: Path, tmp_path: Path, verb: str
) -> None:
    check(capsys, *verb.format(everything, tmp_path).split())


@pytest.mark.slow
@pytest.mark.parametrize("operations", [False, True])
@pytest.mark.parametrize("text", HOSTILE)
def test_every_verb_prints_text_of_a_trace_as_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, operations: bool
) -> None:
    trace = with_text(text, tmp_path / "run.h5", operations=operations)
    for verb in EVERY:
        check(capsys, *verb.format(trace, tmp_path).split())
    for page in tmp_path.glob("*.html"):
        written = page.read_text()
        own = re.sub(r'<script type="text/plain".*?</script>', "", written, flags=re.S)
        assert "<script>alert" not in own
        assert not RAW.search(own)


def test_arguments_are_printed_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    for text in HOSTILE:
        check(capsys, "info", f"{text}.h5")
        check(capsys, "analyze", text, "--only", text)
        check(capsys, text)


@pytest.mark.parametrize("text", HOSTILE)
def test_visible_text_is_printable(text: str) -> None:
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)
