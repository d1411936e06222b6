"""The environment of a captured command, and its lines for a shell."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from moetraffic.launch import hook_environment


def test_the_hook_comes_last_and_nothing_else_changes() -> None:
    hook = hook_environment.variables(
        Path("run.h5"), force=True, names={"model": "m", "router": "", "k": 2}
    )
    folder = str(hook_environment.hook_folder())
    assert hook == {
        "MOETRAFFIC_OUT": str(Path.cwd() / "run.h5"),
        "MOETRAFFIC_OUT_FORCE": "1",
        "MOETRAFFIC_MODEL": "m",
        "MOETRAFFIC_K": "2",
    }
    base = {"HOME": "/home", "PYTHONPATH": f"a{os.pathsep}b", "MOETRAFFIC_ROUTER": "x"}
    found = hook_environment.environment(hook, base)
    assert found.pop("PYTHONPATH") == os.pathsep.join(["a", "b", folder])
    assert found == {"HOME": "/home", **hook}
    # an empty PYTHONPATH would put the working directory on the path
    for empty in ({}, {"PYTHONPATH": ""}):
        assert hook_environment.environment({}, empty) == {"PYTHONPATH": folder}


def test_the_hook_of_the_folder_and_its_recorder_read_these_variables() -> None:
    (file,) = hook_environment.hook_folder().glob("*.py")
    recorder = file.parents[1] / "attached_recorder.py"
    started = re.findall(r'"(MOETRAFFIC_\w+)"', file.read_text())
    read = re.findall(r'given(?:\.get\(|\[)"(\w+)"', recorder.read_text())
    names = [
        hook_environment.OUT,
        hook_environment.FORCE,
        hook_environment.NOTES,
        *hook_environment.NAMES.values(),
    ]
    assert set(names) == {*started, *(f"MOETRAFFIC_{name}" for name in read)}


@pytest.mark.slow
def test_a_shell_that_takes_in_the_lines_has_the_same_environment() -> None:
    hook = hook_environment.variables(
        Path("it's a $run.h5"), force=False, names={"model": 'a "b" `c`'}
    )
    for earlier in ({}, {"PYTHONPATH": "mine:yours"}):
        base = {"PATH": os.environ["PATH"], **earlier}
        script = f"{hook_environment.exports(hook)}\nenv -0"
        ran = subprocess.run(
            ["sh", "-c", script], env=base, capture_output=True, text=True, check=True
        )
        there = dict(line.split("=", 1) for line in ran.stdout.split("\0") if line)
        wanted = hook_environment.environment(hook, base)
        assert {name: there[name] for name in wanted} == wanted
