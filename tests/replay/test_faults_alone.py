"""Ranks of torchrun, srun or a shell, which nobody supervises, name who failed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from moetraffic.launch.rank_process import state_of
from moetraffic.replay.__main__ import main
from moetraffic.replay.rendezvous import rendezvous
from moetraffic.replay.rendezvous.rendezvous import Rendezvous
from moetraffic.trace.trace import Trace


@pytest.fixture
def unsupervised(forked, tmp_path, monkeypatch):
    """Run ranks that are started one by one, with a fault in each; what each says."""
    monkeypatch.setattr("moetraffic.replay.__main__.load_now", lambda: None)

    def run(path, fault, world=3, *, port=0, **options) -> list[str]:
        if not port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        folder = Path(tempfile.mkdtemp(dir=tmp_path))

        def work(rank_env):
            said = os.open(folder / str(rank_env.rank), os.O_CREAT | os.O_WRONLY)
            os.dup2(said, 2)
            arguments = [str(path)]
            for name, value in {"timeout": 3, "start_timeout": 10, **options}.items():
                arguments += [f"--{name.replace('_', '-')}", str(value)]
            fault(rank_env.rank, arguments)
            return main(arguments)

        outside = {
            "MOETRAFFIC_FILESTORE": "",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        forked(world, work, ends=True, **outside)
        # torch writes warnings of its own between the sentences
        return [
            "".join(
                re.findall("^moetraffic: .*\n", (folder / str(r)).read_text(), re.M)
            )
            for r in range(world)
        ]

    return run


@pytest.fixture
def killed(toy_file, unsupervised, at_operation, named):
    """Kill a rank of three in its 20th operation: what each says, and where it was."""

    def run(victim: int) -> tuple[list[str], str]:
        def fault(rank, arguments):
            if rank == victim:
                at_operation(20, lambda: os.kill(os.getpid(), signal.SIGKILL))

        path = toy_file(world=3)
        said = unsupervised(path, fault)
        with Trace.open(path) as trace:
            return said, named(trace, victim, 20)

    return run


def test_without_a_supervisor_the_others_name_a_killed_rank(killed):
    # with rank 0 the store is gone, through which the others would hear of each other
    said, place = killed(0)
    assert (
        f"moetraffic: rank 0 at {place} ended without an error report"
        in said[1] + said[2]
    )
    said, place = killed(1)
    assert said[0] == (
        f"moetraffic: rank 1 at {place} ended without an error report: it was killed, "
        "or crashed\n"
    )
    assert said[2] == ""


@pytest.mark.slow
def test_a_killed_rank_is_named_by_those_that_hear_of_it_before_it_is_gone(
    killed, monkeypatch
):
    """A process closes its connections before it ends; on a busy machine, long."""
    first_looks: list[float] = []

    def late(pid):
        first_looks.append(time.monotonic())
        return "running" if time.monotonic() < first_looks[0] + 1.5 else state_of(pid)

    monkeypatch.setattr(rendezvous, "state_of", late)
    said, place = killed(0)
    assert (
        f"moetraffic: rank 0 at {place} ended without an error report"
        in said[1] + said[2]
    )


@pytest.mark.slow
def test_a_store_that_ends_after_the_diagnosis_of_rank_0_does_not_blame_it(
    toy_file, unsupervised, monkeypatch, at_operation, named
):
    """Rank 0 serves the store, and may end while others still wait for reports."""

    def fault(rank, _):
        if rank == 0:
            monkeypatch.setattr(rendezvous, "_GRACE_S", 1.0)
        if rank == 1:
            at_operation(20, lambda: os.kill(os.getpid(), signal.SIGKILL))

    path = toy_file(world=3)
    said = unsupervised(path, fault)
    with Trace.open(path) as trace:
        place = named(trace, 1, 20)
    sentence = f"moetraffic: rank 1 at {place} ended without an error report"
    assert said[0].startswith(sentence)
    assert said[2] == ""


@pytest.mark.slow
def test_who_hears_of_an_error_again_from_those_that_it_told_still_says_where(
    toy_file, unsupervised, monkeypatch, at_operation, named
):
    """On a busy machine the others' reports are there before rank 0 has ended."""
    plain = Rendezvous._report

    def slow(self, *given):
        report = plain(self, *given)
        if report.rank == 0:
            time.sleep(6.0)
        return report

    monkeypatch.setattr(Rendezvous, "_report", slow)

    def crash():
        raise KeyError("nothing of that name")

    path = toy_file(world=3)
    said = unsupervised(path, lambda rank, _: rank or at_operation(20, crash))
    with Trace.open(path) as trace:
        place = named(trace, 0, 20)
    sentence = f"moetraffic: rank 0 at {place} failed: KeyError: 'nothing of that name'"
    assert said[0].startswith(sentence)


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [0, 1])
def test_without_a_supervisor_a_missing_file_is_told_to_all(
    toy_file, unsupervised, lacking
):
    def fault(rank, arguments):
        if rank == lacking:
            arguments[0] = "/no/such/gone.h5"

    said = unsupervised(toy_file(world=3), fault)
    sentence = f"moetraffic: rank {lacking} at start-up failed: there is no file"
    assert said[0].startswith(sentence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "reason"),
    [("missing", "there is no file"), ("of two", "has 2 and there are 3: start 2")],
)
def test_what_no_rank_can_do_the_first_says(toy_file, unsupervised, trace, reason):
    path = toy_file() if trace == "of two" else "/no/such/gone.h5"
    said = unsupervised(path, lambda rank, arguments: None)
    assert [one.count(reason) for one in said] == [1, 0, 0]


@pytest.mark.slow
def test_a_port_in_use_is_named_and_nobody_hangs(toy_file, unsupervised):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]

        def fault(rank, arguments):
            pass

        said = unsupervised(toy_file(), fault, 2, port=port, start_timeout=2)
    assert f"rank 0 at the rendezvous cannot listen on port {port}" in said[0]
    assert "set MASTER_PORT to a free one" in said[0]
    assert f"rank 1 at the rendezvous has no answer from 127.0.0.1:{port}" in said[1]
    assert "within 2 s: another program listens there" in said[1]


@pytest.mark.slow  # waits for ranks that never come
@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ((1,), "rank 1 at the rendezvous did not arrive within 3 s, while 2 of 3"),
        ((2,), "rank 2 at the rendezvous did not arrive within 3 s, while 2 of 3"),
        ((1, 3), "did not arrive within 3 s (with it, missing: 1, 3), while 2 of 4"),
    ],
)
def test_ranks_that_are_not_started_are_named_once(
    toy_file, unsupervised, missing, sentence
):
    world = 4 if len(missing) > 1 else 3

    def fault(rank, _):
        if rank in missing:
            os._exit(0)

    said = unsupervised(toy_file(world=world), fault, world, start_timeout=3)
    assert sentence in said[0]
    assert not any(said[1:])


@pytest.mark.slow
def test_a_missing_rank_0_is_named_by_the_others(toy_file, unsupervised):
    """It serves the store, in which the others would see who else is missing."""
    path = toy_file(world=3)
    said = unsupervised(path, lambda rank, _: rank or os._exit(0), start_timeout=2)
    for one in said[1:]:
        assert "cannot reach rank 0 at 127.0.0.1:" in one
        assert "within 2 s" in one
        assert (
            "other missing ranks are reported only once rank 0 is reached: start rank 0"
            in one
        )


@pytest.mark.slow
def test_a_missing_rank_0_is_one_line_without_torch_s_own(toy_file):
    """A process of its own, as torch reads the level of its log when it is imported."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = ["-m", "moetraffic.replay", str(toy_file()), "--start-timeout", "2"]
    ran = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("moetraffic: rank 1 at the rendezvous cannot reach")
    assert ran.stderr.count("\n") == 1


@pytest.mark.slow
def test_ranks_that_start_late_are_awaited(toy_file, unsupervised):
    path = toy_file(world=3)
    said = unsupervised(path, lambda rank, _: time.sleep(rank), start_timeout=6)
    assert said == ["", "", ""]
