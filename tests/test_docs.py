"""What README and docs show is what happens."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import moetraffic
from moetraffic.cli import main
from moetraffic.data import path, runs
from moetraffic.policies.optical import OpticalSwitch
from moetraffic.policies.policy import View
from moetraffic.synthetic import preset_names

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "gallery").glob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with nothing but the examples, as whoever follows a page has it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


PICTURE = re.compile(r"!\[[^]]*\]\((?:docs/)?([\w-]+\.png)\)\n\n(?:\*`([^`]+)`)?")


def commands_of(page: Path) -> set[str]:
    every = blocks(page, "sh") + blocks(page, "slow") + blocks(page, "gpu")
    return {line for block in every for line in block.splitlines()}


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if "![" in p.read_text()],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_every_picture_is_made_by_the_command_below_it(page: Path) -> None:
    """And that command is one that the tests of the pages run."""
    run = set().union(*map(commands_of, PAGES))
    found = PICTURE.findall(page.read_text())
    assert len(found) == page.read_text().count("![")
    for picture, command in found:
        folder = ROOT / "docs" if page.parent == ROOT else page.parent
        assert (folder / picture).is_file()
        assert command in run, f"{page.name}: {picture} is made by {command!r}"


def test_every_picture_is_shown() -> None:
    docs = ROOT / "docs"
    every = [*docs.rglob("*.png"), *docs.rglob("*.svg"), *docs.rglob("*.jpg")]
    texts = {
        p.parent / name for p in PAGES for name, _ in PICTURE.findall(p.read_text())
    }
    assert {*every} <= texts


GO_ON = ("for-training.md", "for-networks.md", "for-schedulers.md")
"""Pages that go on in the tutorial's folder, with its run.h5."""

WITH_COMMANDS = [p for p in PAGES if blocks(p, "sh") and p.name not in GO_ON]
PROGRAM = re.compile(r"```python\n(.*?)```\n\n```\n(.*?)```", re.S)
TAKEN = {
    "own-run.md": "import torch.distributed as dist\n"
    "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    "batches, train_step = range(3), float\n"
}
"""What a page's program takes from the reader's own."""


def unprinted(page: Path) -> list[str]:
    """Programs whose output the page does not show: they run after its commands."""
    printed = {program for program, _ in PROGRAM.findall(page.read_text())}
    return [b for b in blocks(page, "python") if b not in printed]


def test_no_page_escapes() -> None:
    every = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert {p for p in every if "```" in p.read_text()} <= set(PAGES)
    languages = {kind for p in PAGES for kind, _ in BLOCK.findall(p.read_text())}
    assert languages == {"", "sh", "slow", "gpu", "python", "text", "json", "toml"}
    programs = {p for p in PAGES if unprinted(p)}
    assert programs - set(WITH_COMMANDS) == {ROOT / "docs" / "format.md"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_every_command_runs(
    page: Path, place: Path, endless: Callable[[Path], subprocess.Popen[str]]
) -> None:
    if "killed.h5.logs" in page.read_text():
        run = endless(place / "killed.h5")
        run.kill()
        run.communicate(timeout=60)  # its ranks have ended, too
    pages = [page]
    if page.name == "tutorial.md":
        pages += [page.with_name(name) for name in GO_ON]
    assert run_all(pages, "sh", place, patience_s=200) >= len(pages)
    for program in unprinted(page):
        program = TAKEN.get(page.name, "") + program
        subprocess.run([sys.executable, "-c", program], cwd=place, check=True)
    if page.name == "command-line.md":
        the_verbs_leave_what_they_say(place)


def the_verbs_leave_what_they_say(place: Path) -> None:
    made = {path.name for path in place.iterdir()}
    assert {"run.h5", "replayed.h5", "killed.h5", "small", "many.h5", "own.h5"} <= made
    # under torchrun the ranks merge by themselves
    with moetraffic.Trace.open(place / "many.h5") as trace:
        assert (trace.meta.world, len(trace.iterations)) == (2, 5)
        assert trace.meta.complete
    pictures = sorted(p.name for p in (place / "small").glob("*.png"))
    assert len(pictures) >= 3
    for name in ("run.h5", "replayed.h5", "summary.txt", "summary.json"):
        assert (place / "small" / name).stat().st_size > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "slow")], ids=lambda page: page.name
)
def test_every_long_command_runs(page: Path, place: Path) -> None:
    assert run_all([page], "slow", place, patience_s=1500) >= 1


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device")
def test_commands_that_need_a_gpu_run(place: Path) -> None:
    pages = [p for p in PAGES if blocks(p, "gpu")]
    assert run_all(pages, "gpu", place, patience_s=600) >= 2


def run_all(pages: list[Path], language: str, place: Path, *, patience_s: float) -> int:
    """Run each line of the pages' blocks of this language; how many there are."""
    commands = [
        line
        for page in pages
        for block in blocks(page, language)
        for line in block.splitlines()
        if line
    ]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        ran = subprocess.run(
            command.split(),
            cwd=place,
            env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stderr[-3000:]}"
        assert "Traceback" not in ran.stderr
    return len(commands)


def test_make_names_the_commands_of_the_readme() -> None:
    for target, said in (("demo", "moetraffic demo -o demo"), ("test", "pytest")):
        ran = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert said in ran.stdout


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=() if p == README else pytest.mark.slow)
        for p in PAGES
        if PROGRAM.search(p.read_text())
    ],
    ids=lambda p: p.name,
)
def test_programs_print_what_their_pages_say(page: Path) -> None:
    for program, said in PROGRAM.findall(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, page.name, "exec"), {})
        assert printed.getvalue() == said


def test_the_page_of_policies_names_every_field_of_a_view() -> None:
    page = (ROOT / "docs" / "write-a-policy.md").read_text()
    named = set(re.findall(r"`(\w+)`", page[page.index("| field of") :]))
    assert {f.name for kind in (View, OpticalSwitch) for f in fields(kind)} <= named


def test_format_page_reads_a_file_without_the_library(captured: Path) -> None:
    with moetraffic.Trace.open(captured) as trace:
        five = {"layer": 1, "iterations": range(5, 6), "kind": None}
        load = trace.demand(trace.find(operation="routing", **five)).sum(axis=1)
        sent = [
            trace.panels["call_4/wire"].read(row, row + 1)[0]
            for row in trace.occurrences.matrix[trace.find(**five)].tolist()
            if row >= 0
        ]
    expected = [load, np.array(sent)]
    for program, value in zip(
        blocks(ROOT / "docs" / "format.md", "python"), expected, strict=True
    ):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program.replace("run.h5", str(captured)), "f", "exec"), {})
        assert printed.getvalue().strip() == str(value)


@pytest.mark.slow
def test_the_pages_become_a_site_without_a_warning(tmp_path: Path) -> None:
    for needed in ("mkdocs", "material", "latex2mathml"):
        pytest.importorskip(needed, reason="the extra docs is not installed")
    built = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"),
            *("--site-dir", str(tmp_path)),
        ],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = {p: p.read_text() for p in tmp_path.rglob("*.html")}
    assert tmp_path / "analyze.html" in pages
    for page, text in pages.items():
        # a reader without a network misses nothing, and every formula is drawn
        fetched = re.findall(r'<(?:script|img|iframe)[^>]* src="(http[^"]*)"', text)
        fetched += re.findall(r'<link[^>]* href="(http[^"]*)"', text)
        assert not fetched, page
        assert "arithmatex" not in text, page
    assert "<math" in pages[tmp_path / "analyze.html"]


def modules() -> list[str]:
    found = ["moetraffic"]
    for package in (
        "moetraffic",
        "moetraffic.gating",
        "moetraffic.models",
        "moetraffic.replay",
    ):
        at = importlib.import_module(package)
        found += [
            m.name
            for m in pkgutil.walk_packages(at.__path__, f"{package}.")
            if not m.name.endswith("__main__")
        ]
    return sorted(set(found))


def test_examples_in_docstrings_are_true() -> None:
    tried = 0
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for name in modules():
        for text in finder.find(importlib.import_module(name)):
            if not text.examples:  # to run nothing looks at every source file once
                continue
            result = runner.run(text)
            assert result.failed == 0, name
            tried += result.attempted
    assert tried > 20


def test_the_page_of_analyze_has_the_rates_of_each_claim() -> None:
    page = (ROOT / "docs" / "analyze.md").read_text()
    table = (ROOT / "benchmarks" / "results" / "claims.csv").read_text()
    rates = re.findall(r"^# ([\w ]+): false in ([\d.]+)%", table, re.M)
    assert len(rates) == 7
    for name, pooled in rates:
        (row,) = re.findall(rf"^\| {name}[^|]*\|[^|]*\| ([\d.]+)% \|", page, re.M)
        assert abs(float(row) - float(pooled)) <= 0.0501, name


def test_each_shipped_run_is_in_the_gallery_and_small() -> None:
    page = (ROOT / "docs" / "gallery" / "index.md").read_text()
    for name in runs():
        assert f"| `{name}` |" in page
        assert {f"{name}-early", f"{name}-late"} <= set(preset_names())
        with moetraffic.Trace.open(path(f"run-{name}.h5")) as trace:
            assert (trace.meta.world, len(trace.iterations)) == (8, 200)
            assert trace.meta.complete
    shipped = sum(file.stat().st_size for file in (ROOT / "data").glob("*.h5"))
    assert shipped < 5_000_000


def test_the_fields_of_evaluate_and_schedule_are_documented(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "json.md").read_text().partition("## evaluate")[2]
    named = set(re.findall(r"`(\w+)`", page))
    run = str(path("run-top2-balanced.h5"))
    chosen = ["--layers", "0", "--iterations", "0:40"]
    assert main(["evaluate", run, "--policy", "rotation", *chosen, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row, *_), (network, *_) = found["tables"]["scores"], found["tables"]["networks"]
    assert {*found["data"], *found["data"]["runs"][0], *row, *network} <= named
    assert main(["schedule", run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    exchange = found["exchanges"][0]
    schedule = exchange["schedules"][0]
    fields = {*found, *exchange, *schedule, *schedule["terms"][0]}
    assert fields - {"schema_version", "file", "kind"} <= named
