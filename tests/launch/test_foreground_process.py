"""A command runs as a shell would have it: descriptors, signals, exit code."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from moetraffic.launch.foreground_process import run


def shell(script: str) -> int:
    return run(["sh", "-c", script], os.environ)


def test_the_exit_code_is_the_commands_or_128_and_its_signal() -> None:
    assert shell("exit 0") == 0
    assert shell("exit 255") == 255
    assert shell("kill -KILL $$") == 128 + signal.SIGKILL
    assert shell("kill -INT $$") == 128 + signal.SIGINT
    with pytest.raises(FileNotFoundError):
        run(["no-such-program"], os.environ)


def test_descriptors_that_were_opened_for_it_stay_open(tmp_path: Path) -> None:
    file = os.open(tmp_path / "three", os.O_WRONLY | os.O_CREAT)
    os.set_inheritable(file, True)
    program = f"import os; os.write({file}, b'there')"
    assert run([sys.executable, "-S", "-c", program], os.environ) == 0
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
        assert run([sys.executable, "-S", "-c", program], os.environ) == 1
    finally:
        signal.signal(signal.SIGHUP, before)
