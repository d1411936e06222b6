"""A training command runs as a shell would run it, with the hook in its variables."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moetraffic.capture import command


def shell(script: str) -> int:
    return command.run(["sh", "-c", script], os.environ)


def test_the_exit_code_is_the_commands_or_128_and_its_signal() -> None:
    assert shell("exit 0") == 0
    assert shell("exit 255") == 255
    assert shell("kill -KILL $$") == 128 + signal.SIGKILL
    assert shell("kill -INT $$") == 128 + signal.SIGINT
    with pytest.raises(FileNotFoundError):
        command.run(["no-such-program"], os.environ)


def test_descriptors_that_were_opened_for_it_stay_open(tmp_path: Path) -> None:
    file = os.open(tmp_path / "three", os.O_WRONLY | os.O_CREAT)
    os.set_inheritable(file, True)
    program = f"import os; os.write({file}, b'there')"
    assert command.run([sys.executable, "-S", "-c", program], os.environ) == 0
    os.close(file)
    assert (tmp_path / "three").read_text() == "there"


def test_signals_from_other_processes_are_passed_on_and_not_obeyed() -> None:
    before = signal.getsignal(signal.SIGTERM)
    wait = "while :; do sleep 0.05; done"
    assert shell(f"trap 'exit 9' TERM; kill -TERM {os.getpid()}; {wait}") == 9
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_is_ignored_here_is_ignored_by_the_command() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        program = "import signal, sys; sys.exit(signal.getsignal(1) is signal.SIG_IGN)"
        assert command.run([sys.executable, "-S", "-c", program], os.environ) == 1
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_hook_comes_last_and_nothing_else_changes() -> None:
    hook = command.variables(
        Path("run.h5"), force=True, names={"model": "m", "router": "", "k": 2}
    )
    folder = str(command.HOOK_FOLDER)
    assert hook == {
        "MOETRAFFIC_OUT": str(Path.cwd() / "run.h5"),
        "MOETRAFFIC_OUT_FORCE": "1",
        "MOETRAFFIC_MODEL": "m",
        "MOETRAFFIC_K": "2",
    }
    base = {"HOME": "/home", "PYTHONPATH": f"a{os.pathsep}b", "MOETRAFFIC_ROUTER": "x"}
    found = command.environment(hook, base)
    assert found.pop("PYTHONPATH") == os.pathsep.join(["a", "b", folder])
    assert found == {"HOME": "/home", **hook}
    # an empty PYTHONPATH would put the working directory on the path
    for empty in ({}, {"PYTHONPATH": ""}):
        assert command.environment({}, empty) == {"PYTHONPATH": folder}


def test_the_hook_of_the_folder_and_its_recorder_read_these_variables() -> None:
    (file,) = command.HOOK_FOLDER.glob("*.py")
    recorder = file.parents[1] / "attached_recorder.py"
    started = re.findall(r'"(MOETRAFFIC_\w+)"', file.read_text())
    read = re.findall(r'given(?:\.get\(|\[)"(\w+)"', recorder.read_text())
    names = [
        command.OUT,
        command.FORCE,
        command.NOTES,
        *command.NAMES.values(),
    ]
    assert set(names) == {*started, *(f"MOETRAFFIC_{name}" for name in read)}


@pytest.mark.slow
def test_a_shell_that_takes_in_the_lines_has_the_same_environment() -> None:
    hook = command.variables(
        Path("it's a $run.h5"), force=False, names={"model": 'a "b" `c`'}
    )
    for earlier in ({}, {"PYTHONPATH": "mine:yours"}):
        base = {"PATH": os.environ["PATH"], **earlier}
        script = f"{command.exports(hook)}\nenv -0"
        ran = subprocess.run(
            ["sh", "-c", script], env=base, capture_output=True, text=True, check=True
        )
        there = dict(line.split("=", 1) for line in ran.stdout.split("\0") if line)
        wanted = command.environment(hook, base)
        assert {name: there[name] for name in wanted} == wanted
