"""Whatever happens to a rank, the others end, and one names it and the operation.

The ranks run tests/replay/chain.py under the supervisor, torchrun, or a shell, which
starts them one by one as srun does.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moetraffic.launch.board import Cause
from moetraffic.launch.ranks import launch
from moetraffic.replay.failure import backend_error

CHAIN = str(Path(__file__).with_name("chain.py"))
GONE = "ended without an error report: it was killed, or crashed"
NO_ANSWER = "did not answer"
SAID = {
    "kill": ("operation 3", GONE),
    "leave": ("operation 3", GONE),
    "late": ("operation 3", NO_ANSWER),
    "crash": ("operation 3", "failed: KeyError: 'nothing of that name'"),
    "refused": ("start-up", "failed: there is no file gone.h5"),
    "plan": ("the agreement on the plan", "has another plan than rank 0"),
    "version": ("the agreement on the plan", "has version 2, while rank 0 has 1"),
    "absent": ("the rendezvous", "did not arrive within 4 s, while 2 of 3 ranks did"),
}
ALSO = ("kill", "late", "crash", "refused", "absent")
REST = ("stop", "late", "refused", "plan")
SUPERVISED = {
    "kill": ("operation 3", "was ended by SIGKILL"),
    "stop": ("operation 3", "was stopped by a signal and did not go on"),
    "leave": ("operation 3", "ended early, without an error"),
}


@pytest.mark.parametrize(
    "fault",
    ["kill", "leave", *(pytest.param(f, marks=pytest.mark.slow) for f in REST)],
)
def test_the_supervisor_names_rank_and_operation(fault):
    outcome = launch(
        [CHAIN, fault, "1"], ranks=3, namer=lambda rank, n: f"operation {n}"
    )
    place, reason = SUPERVISED.get(fault) or SAID[fault]
    assert outcome.sentence.startswith(f"rank 1 at {place} {reason}")


def test_a_chain_without_a_fault(tmp_path):
    outcome = launch([CHAIN, "ok", "-1"], ranks=3, environment={"HERE": str(tmp_path)})
    assert outcome.ok, outcome.stderr
    assert (tmp_path / "done").exists()


@pytest.fixture
def alone() -> Iterator[Callable[..., list[str]]]:
    """Start the ranks of a chain without a supervisor; what each says."""
    started: list[subprocess.Popen[str]] = []

    def run(
        fault: str,
        rank: int = 1,
        world: int = 3,
        *,
        launcher: str = "shell",
        port: int = 0,
        **more: str,
    ) -> list[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = port or free.getsockname()[1]
        options = [CHAIN, fault, str(rank), "4" if fault == "absent" else "30"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
        commands = [([sys.executable, *options], {})]
        if launcher == "torchrun":
            torchrun = [sys.executable, "-m", "torch.distributed.run"]
            torchrun += ["--nproc-per-node", str(world), "--master-port", str(port)]
            commands = [([*torchrun, *options], {})]
        else:
            names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            names["WORLD_SIZE"] = str(world)
            commands = [
                (commands[0][0], {**names, "RANK": str(r), "LOCAL_RANK": str(r)})
                for r in range(world)
            ]
        mine = [
            subprocess.Popen(
                command, env=environment | own, stderr=subprocess.PIPE, text=True
            )
            for command, own in commands
        ]
        started.extend(mine)
        texts = [process.communicate(timeout=60)[1] for process in mine]
        return ["".join(re.findall("^moetraffic: .*\n", t, re.M)) for t in texts]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "launcher"),
    [*((fault, "shell") for fault in SAID), *((f, "torchrun") for f in ALSO)],
)
def test_without_a_supervisor_one_rank_names_it(alone, fault, launcher):
    said = "".join(alone(fault, launcher=launcher))
    sentences = [s for s in said.splitlines() if "did not go on" not in s]
    place, reason = SAID[fault]
    assert len(sentences) == 1
    assert sentences[0].startswith(f"moetraffic: rank 1 at {place} {reason}")


def test_a_killed_rank_0_is_named_though_it_served_the_store(alone):
    said = "".join(alone("kill", 0))
    assert f"rank 0 at operation 3 {GONE}" in said


@pytest.mark.slow
def test_a_lost_host_is_named(alone):
    said = "".join(alone("kill", 1, SPREAD="1"))
    assert said.count("\n") == 1
    assert "rank 1 at operation 3 did not answer: look at its host, host 1" in said
    said = "".join(alone("kill", 0, SPREAD="1"))
    assert "rank 0 at operation 3 is lost, and with it the rendezvous" in said


@pytest.mark.slow
def test_a_stopped_rank_is_named_by_the_others(alone):
    """torchrun ends it after 30 s."""
    said = "".join(alone("stop", launcher="torchrun"))
    assert "rank 1 at operation 3 was stopped by a signal and did not go on" in said


def test_a_port_in_use_is_named(alone):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        said = alone("ok", world=2, port=other.getsockname()[1])
    assert "rank 0 at the rendezvous cannot listen on 127.0.0.1:" in said[0]
    assert "rank 1 at the rendezvous cannot reach rank 0 at 127.0.0.1:" in said[1]


WATCHED = """
import os, signal, socket, sys, time
from moetraffic.launch.board import State, own
from moetraffic.replay.failure import Watchdog
os.environ["RANK"] = "3"
pair = socket.socketpair()
name = lambda rank, n: f"operation {n}"
dog = Watchdog(name, start_s=1.0, silence_s=0.8, grace_s=0.4)
print("up", flush=True)
"""


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (
            'own().note("the rendezvous"); pair[0].recv(1)',
            2,
            "rank 3 at the rendezvous was not ready within 1 s of its start: ",
        ),
        (
            'own().note("", State.READY); own().counter[0] = 15; time.sleep(60)',
            2,
            "rank 3 at operation 7 did not go on for 0.8 s: ",
        ),
        (
            'own().note("x", State.READY, within_s=9); time.sleep(2); dog.stop()',
            0,
            "",
        ),
        (
            'own().note("", State.READY, within_s=30)\n'
            "os.kill(os.getpid(), signal.SIGTERM); pair[0].recv(1)",
            128 + signal.SIGTERM,
            "rank 3 at operation 0 was asked to end by SIGTERM: ",
        ),
    ],
)
def test_a_rank_without_a_supervisor_ends_at_its_deadlines(body, code, said):
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED + body],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.removeprefix("moetraffic: ").startswith(said)


def test_gloos_message_loses_its_source_line_and_advice():
    said = (
        "[/build/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:54159: "
        "Connection reset by peer. This is typically caused by a remote worker hanging"
    )
    error = backend_error(2, "operation 3", RuntimeError(said))
    assert str(error) == (
        "rank 2 at operation 3 lost another rank: Read error [127.0.0.1]:54159: "
        "Connection reset by peer"
    )
    assert error.cause == Cause.PEER
    own = backend_error(2, "operation 3", RuntimeError("CUDA error: out of memory\n."))
    assert (own.cause, own.reason) == (Cause.OWN, "CUDA error: out of memory")
