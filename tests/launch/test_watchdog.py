"""A rank without a supervisor ends at its deadlines, and says where it was."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import os, signal, socket, sys, time
from moetraffic.launch import heartbeat
from moetraffic.launch.watchdog import Watchdog
beat = heartbeat.send
dog = Watchdog(3, start_s=0.6, operation_s=0.4, grace_s=0.4)
dog.namer = lambda n: f"operation {n}"
count = heartbeat.counter()
dog.start()
print("up", flush=True)
"""


@pytest.fixture
def rank():
    """Start a rank of these lines; it is ended whatever comes."""
    started = []

    def start(body: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(body)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        assert program.stdout.readline() == "up\n"
        return program

    yield start
    for program in started:
        program.kill()
        program.communicate()


def ended(program) -> tuple[int, str]:
    said = program.communicate(timeout=30)[1]
    return program.returncode, said.removeprefix("moetraffic: rank 3").strip()


def test_a_call_that_never_returns_ends_at_the_deadline(rank):
    body = """
        beat("start", "the meeting of the ranks")
        a, b = socket.socketpair()
        a.recv(1)
    """
    code, said = ended(rank(body))
    assert code == 2
    assert said.startswith("at the meeting of the ranks was not ready within 0.6 s")


@pytest.mark.slow
def test_silence_is_named_with_the_operation(rank):
    code, said = ended(rank('beat("ready")\ncount[0] = 15\ntime.sleep(60)'))
    assert (code, said.split(":")[0]) == (2, "at operation 7 did not go on for 0.4 s")


@pytest.mark.slow
def test_whoever_moves_or_announces_its_silence_goes_on(rank):
    body = """
        beat("ready")
        for n in range(12):
            count[0] = n
            time.sleep(0.1)
        beat("step", "the writing", within_s=30.0)
        time.sleep(1.0)
        dog.stop()
        time.sleep(0.8)
    """
    assert ended(rank(body)) == (0, "")


@pytest.mark.slow
def test_a_signal_lets_it_finish_or_say_where_it_is(rank):
    body = """
        beat("ready", within_s=30.0)
        count[0] = 5
        a, b = socket.socketpair()
        print("in", flush=True)
        a.recv(1)
    """
    busy = rank(body)
    assert busy.stdout.readline() == "in\n"
    busy.send_signal(signal.SIGTERM)
    code, said = ended(busy)
    assert code == 128 + signal.SIGTERM
    assert said.startswith("at operation 2 was asked to end by SIGTERM")

    quick = rank("time.sleep(0.1)\nos._exit(7)")
    quick.send_signal(signal.SIGTERM)
    assert ended(quick) == (7, "")
