"""All verbs together: help shows an example, wrong input is a sentence, completion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from moetraffic.cli import main
from moetraffic.cli.app import WINGS, app
from moetraffic.data import path
from moetraffic.replay import __main__ as replay
from moetraffic.replay.bench import __main__ as bench

VERBS: dict[str, Any] = {
    **get_command(app).commands,  # type: ignore[attr-defined]
    "replay": get_command(replay.app),
    "bench": get_command(bench.app),
}


def options(verb: str) -> list[Any]:
    return [
        p
        for p in VERBS[verb].params
        if p.param_type_name == "option" and not p.hidden and p.name != "help"
    ]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_shows_an_example_that_the_verb_understands(verb: str) -> None:
    told = get_command(app).commands[verb].help  # type: ignore[attr-defined]
    found = re.search(r"^Example: moetraffic (?:--\S+ \S+ )?(\S+)(.*)$", told, re.M)
    assert found is not None, f"{verb} --help lacks a line Example: moetraffic {verb}"
    assert found[1] == verb
    known = {name for o in options(verb) for name in (*o.opts, *o.secondary_opts)}
    given = re.findall(r"(?<=\s)--?[a-z][\w-]*", found[2].split(" -- ")[0])
    assert set(given) <= known, f"the example of {verb} has options it does not know"


def test_the_command_line_page_says_what_each_verb_does() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    verbs = page[page.index("## Verbs") : page.index("## Options")]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", verbs, re.M)
    named = [verb for row in rows for verb in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(VERBS)


def test_verbs_that_are_other_programs_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []

    def execv(program: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise typer.Exit(0)

    monkeypatch.setattr("os.execv", execv)
    for verb in WINGS:
        main([verb, "--help"])
    assert [line[2].split(".")[1] for line in started] == ["replay", "replay"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_completion_in_bash(tmp_path: Path) -> None:
    """What the installed script completes: a verb, and an option of a verb."""
    program = tmp_path / "moetraffic"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom moetraffic.cli import main\n"
        "sys.exit(main())\n"
    )
    program.chmod(0o755)
    script = (
        'show() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); '
        '_moetraffic_completion moetraffic; echo "${COMPREPLY[@]}"; }\n'
        'eval "$(_MOETRAFFIC_COMPLETE=source_bash moetraffic)"\n'
        "show moetraffic mer\n"
        "show moetraffic merge --fo\n"
    )
    ran = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert ran.stdout.split("\n")[:2] == ["merge", "--force"], ran


def wrong_inputs(verb: str) -> list[list[str]]:
    """List an option that does not exist, a value of a wrong type, a missing file."""
    numbers = [o.opts[-1] for o in options(verb) if type(o.default) in (int, float)]
    needed = [p for p in VERBS[verb].params if p.param_type_name == "argument"]
    return [
        ["--no-such-option"],
        *([[numbers[0], "many"]] if numbers else []),
        ["no/such/file"] * max(1, len(needed)),
    ]


@pytest.mark.parametrize("verb", sorted({*VERBS} - {*WINGS, "run"}))
def test_a_wrong_input_is_one_sentence_and_exit_code_2(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in wrong_inputs(verb):
        assert main([verb, *arguments]) == 2, arguments
        said = capsys.readouterr().err
        assert said.startswith("moetraffic: "), arguments
        assert len(said.splitlines()) == 1, arguments
        assert "Traceback" not in said


def test_paragraphs_of_help_are_wrapped_to_the_terminal() -> None:
    for name, verb in VERBS.items():
        for paragraph in f"{verb.help}\n\n{verb.epilog}".split("\n\n"):
            assert "\n" not in paragraph, f"{name}: {paragraph}"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["analyze", "--threads", "0"], "at least 1, but is 0"),
        (["report", "-o", "page.pdf"], "a report is an HTML file, but page.pdf"),
    ],
)
def test_values_that_nothing_would_read_are_refused(
    asked: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *options = asked
    assert main([verb, str(path("golden.h5")), *options]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1
    assert not said.out
    assert not list(tmp_path.iterdir())
