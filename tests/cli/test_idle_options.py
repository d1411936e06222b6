"""Options without effect are refused: made from the tables of options of all verbs."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path
from typing import Any

import h5py
import pytest

from moetraffic.cli import main
from moetraffic.data import path
from moetraffic.replay import __main__ as replay
from moetraffic.replay.bench import __main__ as bench
from moetraffic.report.console.idle_options import (
    NEEDED,
    refuse_idle,
    refuse_lone,
)
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
    "bandwidth": "big-red-200 --collective all_reduce --ranks 8 --span 2",
    "models": "",
    "estimate": "--model gpt-1.3b --dp 8 --bandwidth 25GB/s",
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


COINCIDENT = {
    "analyze": {"--tables"},  # its command has --only, which prints tables
    "export": {"--unnamed", "--pace", "--unit"},
    "place": {"--ranks"},
    "fabric": {*("--hosts", "--leaves", "--slots", "--flows", "--seed", "--hot")}
    | {"--algorithm"},
    "evaluate": {"--forecaster", "--age", "--hold", "--ages", "--most", "--phase"}
    | {"--circuit-counts", "--rest"},
    "estimate": {"--fused-attention"},
    "pattern": {*("--moe-every", "--tied", "--k", "--etp", "--context", "--ulysses")}
    | {*("--dispatcher", "--scatter-gather", "--recompute", "--sequence-parallel")}
    | {*("--dispatch-dtype", "--synchronization", "--bucket-mib", "--dispatch")},
    "generate": {"--model", "--judge", "--k", "--times", "--tables"},
    "replay": {*("--output", "--nproc", "--pace", "--tables", "--verify", "--sample")}
    | {*("--sample-seed", "--backend", "--warm-up", "--repeat", "--probe", "--graphs")}
    | {*("--pairs", "--fidelity")},
    "validate": {"--iterations", "--ranks-per-host"},
    "report": {"--matrices"},
}
"""Options that change nothing of these commands, but of others: their values are what
holds anyway, another format or a policy has them, or a dry run does not reach them."""


def values(option: Any) -> list[str]:
    """Values other than the default."""
    name = max(option.opts, key=len)
    if name in VALUES:
        return VALUES[name]
    base = option.default
    if isinstance(base, float):
        return [str(base / 2), str(base * 1.5 + 0.25)]
    numbers = [str(base + n) for n in (1, 2, 4)] if isinstance(base, int) else ["2"]
    # what its help names
    words = re.findall(r"[a-z][\w:.=-]*[\w]", option.help)
    return [v for v in dict.fromkeys([*numbers, *words]) if v != str(base)]


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
    code, plain = outcome(base, tmp_path, capsys)
    assert code in (0, 3)  # 3: too few runs for a verdict
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
            if digest == plain and not {*option.opts} & COINCIDENT.get(verb, set()):
                idle.append(" ".join(words))
            break
    assert not idle, f"{shlex.join(base)}: without effect: {', '.join(idle)}"


def takes(verb: str) -> dict[str, Any]:
    """Options of a verb by each of their spellings."""
    return {flag: option for option in options(verb) for flag in option.opts}


def lone_options() -> list[tuple[str, str]]:
    """Verbs that may write nothing, and their options that need what is written."""
    found = []
    for verb in sorted(VERBS):
        own = takes(verb)
        for flag, needed in NEEDED.items():
            outputs = [own[name] for name in needed if name in own]
            always = any(
                o.default or o.required or isinstance(o.show_default, str)
                for o in outputs
            )
            if flag in own and outputs and not always:
                found.append((verb, flag))
    return found


def taken(verb: str) -> list[str]:
    """The trace that a verb requires, if it does."""
    required = [p for p in VERBS[verb].params if p.required]
    return [str(RUN)] * any(p.param_type_name == "argument" for p in required)


@pytest.mark.parametrize(("verb", "flag"), lone_options())
def test_options_are_refused_without_what_they_need(
    verb: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever the table of options has both."""
    value = [] if takes(verb)[flag].is_flag else VALUES[flag][:1]
    assert called([verb, *taken(verb), flag, *value]) == 2
    told = capsys.readouterr().err
    assert re.search(r"without .* nothing is (drawn|written)", told)
    assert flag in told
    assert "leave it out" in told


@pytest.mark.parametrize(
    "verb", [v for v in sorted(VERBS) if {"--force", "-o"} <= {*takes(v)}]
)
def test_what_writes_may_overwrite(verb: str) -> None:
    """Each option that names a file is one that --force needs."""
    assert {*takes(verb)} & {*NEEDED["--force"]}
    context = VERBS[verb].make_context(
        verb, ["--force", "-o", "x.h5"], resilient_parsing=True
    )
    refuse_lone(context)


@pytest.mark.parametrize(
    "verb",
    [
        v
        for v in sorted({*every_option()["--tables"]} - {"replay"})
        if "--json" in takes(v)
        and all(p.name == "trace" for p in VERBS[v].params if p.required)
    ],
)
def test_parts_of_what_is_printed_are_none_of_json(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called([verb, *taken(verb), "--tables", "--json"]) == 2
    assert "--json prints all parts" in capsys.readouterr().err


def test_a_name_that_is_no_option_is_a_programming_error() -> None:
    """A renamed option would be accepted without effect."""
    context = VERBS["info"].make_context("info", [str(SMALL)])
    refuse_idle(context, ("tables",), "there are none")
    with pytest.raises(KeyError, match="renamed"):
        refuse_idle(context, ("tables", "renamed"), "there are none")
