"""Options without effect are refused: made from the tables of options of all verbs."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

import h5py
import pytest

from moetraffic.cli import main
from moetraffic.data import path
from moetraffic.replay import __main__ as replay
from moetraffic.replay.bench import __main__ as bench
from moetraffic.report.console.options import NEEDED
from moetraffic.report.console.terminal import run

from .test_options import VERBS, every_option, options

RUN, SMALL = path("run-top2-balanced.h5"), path("golden-v1.2.h5")

COMMANDS = {
    "info": f"{SMALL}",
    "analyze": f"{SMALL} --only skew",
    "compare": f"{SMALL} {path('golden-v1.h5')}",
    "plot": f"{SMALL} -o pictures --only demand",
    "export": f"{SMALL} --to csv -o flows.csv",
    "place": f"{SMALL} --ep 2 -o placed.h5",
    "fabric": f"{SMALL}",
    "schedule": f"{SMALL}",
    "evaluate": f"{RUN} --policy rotation --layers 0 --iterations 0:20",
    "bandwidth": "big-red-200 --collective all_reduce",
    "models": "",
    "estimate": "--model gpt-1.3b --dp 8",
    "pattern": "--model tiny --dp 2 --ep 2 --gpus-per-node 2",
    "generate": "--from top2-balanced-early -o made.h5 --iterations 4",
    "replay": f"{SMALL} --dry-run",
    "validate": f"{SMALL} --against {path('golden-v1.h5')}",
    "report": f"{SMALL} -o page.html",
}
"""A command of each verb that needs no training, to which options are added."""

VALUES: dict[str, list[str]] = {
    "--width": ["3in"],
    "--style": ["ggplot"],
    "--plot": ["picture.svg"],
    "--output": ["other.json", "other.h5", "other"],
    "--iterations": ["1:11", "2", "2:18"],
    "--layer": ["0", "1"],
    "--only": ["calls", "claims", "tests", "network", "circuits", "scores", "fits"],
    "--capacity": ["17Gbps"],
    "--reconfigure": ["3us"],
}
"""Values of options whose kind does not give one; the first that is accepted counts."""

UNSEEN = {
    "--threads": "how fast it is",
    "--timeout": "how long a failure takes",
    "--start-timeout": "how long a failure takes",
    "--limit": "how long a policy may take",
    "--force": "what may be overwritten",
    "--live": "what is shown meanwhile",
}
"""Options whose effect is not in what a command prints and writes, and what it is."""


def values(option: Any) -> list[str]:
    """Values other than the default."""
    name = max(option.opts, key=len)
    if name in VALUES:
        return VALUES[name]
    kind = option.type.name
    if kind in ("integer", "integer range"):
        base = option.default if isinstance(option.default, int) else 0
        return [str(base + 1), str(2 * base + 2), str(4 * base + 4)]
    if kind in ("float", "float range"):
        base = option.default if isinstance(option.default, float) else 0.5
        return [str(base / 2), str(base * 1.5 + 0.25)]
    found = option.shell_complete(None, "") if option._custom_shell_complete else []
    return [item.value for item in found if item.value != option.default]


def called(words: list[str]) -> int:
    """Exit code of a command; that of replay and bench within this process."""
    apps = {"replay": replay.app, "bench": bench.app}
    if words[0] in apps:
        return run(apps[words[0]], words[1:], f"moetraffic {words[0]}")
    return main(words)


def outcome(words: list[str], folder: Path, capsys: Any) -> tuple[int, str]:
    """Exit code of a command, and a digest of what it prints and writes."""
    code = called(words)
    told = capsys.readouterr()
    seen = hashlib.sha256((told.out + told.err).encode())
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        seen.update(str(file.relative_to(folder)).encode())
        seen.update(_content(file))
        file.unlink()
    return code, seen.hexdigest()


def _content(file: Path) -> bytes:
    if file.suffix != ".h5":
        return file.read_bytes()
    seen = hashlib.sha256()
    with h5py.File(file) as opened:
        opened.visititems(
            lambda name, one: (
                seen.update(name.encode() + one[()].tobytes())
                if isinstance(one, h5py.Dataset) and one.dtype.kind != "O"
                else None
            )
        )
    return seen.digest()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("verb", COMMANDS)
def test_every_option_that_is_accepted_changes_something(
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each is added to a command; if nothing else comes out, it had to be refused."""
    monkeypatch.chdir(tmp_path)
    base = [verb, *shlex.split(COMMANDS[verb])]
    _, plain = outcome(base, tmp_path, capsys)
    _, again = outcome(base, tmp_path, capsys)
    if plain != again:
        pytest.skip("its outputs differ from run to run")
    idle = []
    for option in options(verb):
        name = max(option.opts, key=len)
        if name in UNSEEN or {*option.opts} & {*base}:
            continue
        for value in [None] if option.is_flag else values(option):
            flag = option.secondary_opts[-1] if option.default is True else name
            words = [flag] if value is None else [name, value]
            code, digest = outcome([*base, *words], tmp_path, capsys)
            if code == 2:
                continue
            if digest == plain:
                idle.append(" ".join(words))
            break
    assert not idle, f"{shlex.join(base)}: without effect: {', '.join(idle)}"


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_options_are_refused_without_what_they_need(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever the table of options has both."""
    own = {p.name: p for p in options(verb)}
    required = {p.name for p in VERBS[verb].params if p.required}
    for name, (needed, why) in NEEDED.items():
        known = [other for other in needed if other in own]
        if name not in own or not known or any(own[n].default for n in known):
            continue
        if {*known} & required:
            continue
        flag = max(own[name].opts, key=len)
        value = [] if own[name].is_flag else VALUES[flag][:1]
        taken = VERBS[verb].params
        reads = any(p.required and p.param_type_name == "argument" for p in taken)
        arguments = [str(RUN)] * reads
        assert called([verb, *arguments, flag, *value]) == 2, (verb, flag)
        told = capsys.readouterr().err
        assert why in told
        assert flag in told
        assert "leave it out" in told


def test_parts_of_what_is_printed_are_none_of_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verb in every_option()["--tables"]:
        if "as_json" not in {p.name for p in options(verb)} or verb in ("replay",):
            continue
        if any(p.required and p.name != "trace" for p in VERBS[verb].params):
            continue
        arguments = [str(RUN)] * VERBS[verb].params[0].required
        assert called([verb, *arguments, "--tables", "--json"]) == 2, verb
        assert "--json prints all parts" in capsys.readouterr().err
