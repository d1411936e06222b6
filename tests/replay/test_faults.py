"""Whatever is broken in a replay, it ends, and the rank and the operation are named."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import moetraffic
from moetraffic.errors import Interrupted, ReplayError
from moetraffic.replay import local, make_plan
from moetraffic.replay import rank as rank_module
from moetraffic.replay import request as request_module
from moetraffic.replay.execution import control, payload
from moetraffic.replay.failure import backend_error
from moetraffic.replay.plan.program import Program
from moetraffic.replay.plan.selection import Depth, Verification
from moetraffic.replay.rendezvous import rendezvous
from moetraffic.replay.request import Request
from moetraffic.replay.results import conclusion
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size

PLACE = r"iteration \d+, layer \d, \w+, (micro-batch|call) \d"
LENGTH = 21
"""Operations of a rank of the toy trace, whatever its number of ranks."""
CAMPAIGN = Path(__file__).parents[2] / "benchmarks" / "replay_faults.py"


def failure(replay_with, path, fault, **options) -> str:
    with pytest.raises(ReplayError) as told:
        replay_with(path, fault, **options)
    sentence = str(told.value)
    assert "\n" not in sentence
    return sentence


def test_a_killed_rank_is_named_with_its_operation(
    toy_file, replay_with, at_operation, named
):
    def fault(rank, arguments):
        if rank == 1:
            at_operation(3, lambda: os.kill(os.getpid(), signal.SIGKILL))

    path = toy_file(world=3)
    sentence = failure(replay_with, path, fault)
    with Trace.open(path) as trace:
        assert sentence == f"rank 1 at {named(trace, 1, 3)} was ended by SIGKILL"


@pytest.mark.slow
def test_a_rank_killed_in_the_timed_pass_is_named_there(
    toy_file, replay_with, at_operation, named
):
    def fault(rank, arguments):
        if rank == 0:
            at_operation(LENGTH + 7, lambda: os.kill(os.getpid(), signal.SIGSEGV))

    path = toy_file()
    sentence = failure(replay_with, path, fault)
    with Trace.open(path) as trace:
        assert (
            f"rank 0 at {named(trace, 0, LENGTH + 7)} was ended by SIGSEGV" in sentence
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSTOP), "stopped by a signal"),
        (lambda: time.sleep(60), "did not answer"),
    ],
    ids=["stopped", "late"],
)
def test_a_rank_that_does_not_come_is_named(
    toy_file, replay_with, what, said, at_operation, named
):
    def fault(rank, arguments):
        if rank == 2:
            at_operation(4, what)

    path = toy_file(world=3)
    sentence = failure(replay_with, path, fault, timeout_s=2.0)
    with Trace.open(path) as trace:
        assert sentence.startswith(f"rank 2 at {named(trace, 2, 4)} ")
    assert said in sentence


@pytest.mark.slow
def test_a_late_start_is_waited_for(toy_file, replay_with):
    def fault(rank, arguments):
        time.sleep(1.0 if rank == 1 else 0.0)

    assert replay_with(toy_file(), fault).operations == LENGTH


@pytest.mark.slow
def test_another_trace_on_one_rank_is_named_with_the_first_difference(
    toy_file, replay_with
):
    path, other = toy_file(world=3), toy_file(world=3, seed=1)

    def fault(rank, arguments):
        if rank == 2:
            arguments[0] = str(other)

    sentence = failure(replay_with, path, fault)
    assert re.match(rf"rank 2 at {PLACE} has another plan than rank 0 ", sentence)
    with Trace.open(path) as a, Trace.open(other) as b:
        plan = make_plan(a)
        differs = np.flatnonzero(plan.checksum != make_plan(b).checksum)
        assert plan.name(int(differs[0])) in sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--iterations", "0:2"], "has iterations range(0, 2), while rank 0 has None"),
        (["--timeout", "9"], "has timeout_s 9.0, while rank 0 has 30.0"),
        (["--verify", "none"], "has verify none, while rank 0 has full"),
    ],
)
def test_another_option_on_one_rank_is_named(toy_file, replay_with, options, said):
    def fault(rank, arguments):
        if rank == 1:
            arguments += options

    sentence = failure(replay_with, toy_file(world=3), fault)
    assert sentence.startswith(f"rank 1 at the agreement on the plan {said}")


@pytest.mark.slow
def test_another_version_on_one_rank_is_named_whatever_its_plan(toy_file, replay_with):
    other = toy_file(world=3, seed=1)

    def fault(rank, arguments):
        if rank == 2:
            moetraffic.__version__ = "0.0.1"
            arguments[0] = str(other)

    sentence = failure(replay_with, toy_file(world=3), fault)
    assert sentence.startswith("rank 2 at the agreement on the plan has moetraffic 0.0")


@pytest.mark.slow
def test_a_version_that_speaks_otherwise_is_named(toy_file, replay_with):
    def fault(rank, arguments):
        if rank == 1:
            rendezvous.asdict = lambda _: {"terms": {"moetraffic": "9.9"}, "more": 1}

    sentence = failure(replay_with, toy_file(), fault)
    assert sentence.startswith("rank 1 at the agreement on the plan has moetraffic 9.9")


@pytest.mark.slow
def test_a_file_that_one_rank_does_not_have_is_named(toy_file, replay_with, tmp_path):
    def fault(rank, arguments):
        if rank == 1:
            arguments[0] = str(tmp_path / "gone.h5")

    sentence = failure(replay_with, toy_file(), fault)
    assert sentence.startswith("rank 1 at start-up failed: ")
    assert "gone.h5" in sentence


@pytest.mark.parametrize(
    ("more", "depth"),
    [
        *(
            pytest.param(more, depth, marks=pytest.mark.slow)
            for more, depth in ((8, Depth.NONE), (-8, Depth.SAMPLE))
        ),
        (8, Depth.FULL),
    ],
)
def test_sending_other_than_planned_is_found_before_it_is_sent(
    toy_file, replay_with, more, depth
):
    """gloo would abort the receiver of more, and keep old bytes where less comes."""
    path = toy_file(world=3)

    def fault(rank, arguments):
        if rank == 1:
            request_module.make_plan = tampered(4, more)

    sentence = failure(replay_with, path, fault, verify=Verification(depth=depth))
    with Trace.open(path) as trace:
        plan = make_plan(trace)
        program = plan.programs[1]
        size = int(program.sends(4)[2])
        place = plan.name(int(program.operation[4]))
    assert sentence.startswith(f"rank 1 at {place} sends {size + more} bytes to rank 2")
    assert f"whose plan expects {size}" in sentence


@pytest.mark.slow
def test_a_wrong_size_in_the_last_operation_is_told_by_who_found_it(
    toy_file, replay_with
):
    """Who found nothing is through first, and must not blame the order."""
    path = toy_file(world=3)
    with Trace.open(path) as trace:
        plan = make_plan(trace)
        program = plan.programs[1]
        uneven = np.diff(program.first) > 0
        last = [n for n in plan.checking_order(1).tolist() if uneven[n]][-1]
        place = plan.name(int(program.operation[last]))

    def fault(rank, arguments):
        if rank == 1:
            request_module.make_plan = tampered(last, 8)
        if rank == 2:
            plain = control.compare_sizes

            def slow(*given):
                try:
                    plain(*given)
                except ReplayError:
                    time.sleep(2.0)
                    raise

            control.compare_sizes = slow

    sentence = failure(replay_with, path, fault)
    assert sentence.startswith(f"rank 1 at {place} sends ")


def tampered(n: int, more: int):
    """Planning as it is, but a rank's n-th operation sends other bytes to the last."""

    def make(*arguments, **named):
        plan = make_plan(*arguments, **named)
        ((rank, program),) = plan.programs.items()
        sends = program.send_bytes.copy()
        sends[program.first[n + 1] - 1] += more
        sizes = program.send_size.copy()
        sizes[n] += more
        other = replace(program, send_bytes=sends, send_size=sizes)
        return replace(plan, programs={rank: other})

    return make


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda out: out.__setitem__(0, out[0] ^ 16), "byte 0 of"),
        pytest.param(
            lambda out: out.__setitem__(slice(None), 0xA5),
            "nothing was received there",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["flipped bit", "nothing"],
)
def test_bytes_that_change_on_the_way_are_named(toy_file, replay_with, harm, said):
    path = toy_file(largest=50_000)
    with Trace.open(path) as trace:
        plan = make_plan(trace)
        program = plan.programs[0]
        n = next(n for n in range(len(program)) if program.sends(n)[0] > 1000)
        wrong = int(program.operation[n])

    def fault(rank, arguments):
        if rank == 0:
            plain = payload.fill

            def fill(out, *, operation, **named):
                plain(out, operation=operation, **named)
                if operation == wrong:
                    harm(out)

            payload.fill = fill

    sentence = failure(replay_with, path, fault)
    assert sentence.startswith(f"rank 0 at {plan.name(wrong)} sent bytes that did not")
    assert said in sentence


@pytest.mark.slow
def test_a_lack_of_memory_is_named_before_it_is_allocated(toy_file, replay_with):
    def fault(rank, arguments):
        if rank == 1:
            rank_module.available_bytes = lambda: 10_000
            rank_module.Engine = None

    path = toy_file(world=3)
    sentence = failure(replay_with, path, fault)
    with Trace.open(path) as trace:
        programs = make_plan(trace).programs.values()
        needed = byte_size(sum(sum(p.buffer_bytes) for p in programs))
    assert sentence.startswith("rank 0 at start-up has too little memory: its buffers")
    assert f"and those of 2 more ranks need {needed} on " in sentence
    assert "where 10.00 kB are free" in sentence


@pytest.mark.slow
def test_a_failing_allocation_is_named(toy_file, replay_with):
    def fault(rank, arguments):
        if rank == 1:
            rank_module.available_bytes = lambda: None
            Program.stream_bytes = lambda self, stream: (8, 1 << 60)
            Program.buffer_bytes = property(lambda self: (8, 1 << 60))
        else:
            rank_module.available_bytes = lambda: None

    sentence = failure(replay_with, toy_file(), fault)
    assert sentence.startswith("rank 1 at start-up ")
    assert "has no memory for buffers" in sentence


def test_a_full_disk_loses_nothing(toy_file, replay_with, tmp_path, monkeypatch):
    (tmp_path / "kept").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "kept"))

    def fault(rank, arguments):
        plain = os.pwrite

        def pwrite(fd, data, at):
            if "/out/" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return plain(fd, data, at)

        os.pwrite = pwrite

    path, out = toy_file(), tmp_path / "out" / "replayed.h5"
    sentence = failure(replay_with, path, fault, out=out)
    assert sentence.startswith("rank 0 at the writing of the trace failed: ")
    assert "(No space left on device): make room" in sentence
    (kept,) = (tmp_path / "kept").glob("*.h5")
    assert sentence.endswith(f"is kept as {kept}")
    assert not list((tmp_path / "out").iterdir())
    with Trace.open(kept) as made, Trace.open(path) as trace:
        plan = make_plan(made)
        assert (plan.checksum == make_plan(trace).checksum).all()
        assert (made.times(plan.occurrence[:1])[0] > 0).all()


def test_a_disk_that_is_surely_too_small_is_refused_before_any_rank_starts(
    toy_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(local, "launch", None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    request = Request(trace=toy_file(), out=tmp_path / "out.h5")
    with pytest.raises(ReplayError, match=r"has 1\.00 kB free: make room"):
        local.replay(request)


@pytest.mark.slow
def test_a_long_writing_is_no_silence(toy_file, replay_with, tmp_path):
    def fault(rank, arguments):
        plain = conclusion.write

        def slow(*given, **named):
            time.sleep(2.5)  # the longest silence of an operation is 2.3 s
            plain(*given, **named)

        conclusion.write = slow

    out = tmp_path / "out.h5"
    replay_with(toy_file(), fault, out=out, timeout_s=0.2)
    assert out.exists()


@pytest.mark.slow
def test_an_error_that_nobody_foresaw_is_named(
    toy_file, replay_with, at_operation, named
):
    def fault(rank, arguments):
        if rank == 1:
            at_operation(2, lambda: {}["a key that is not there"])

    path = toy_file()
    sentence = failure(replay_with, path, fault)
    with Trace.open(path) as trace:
        assert sentence.startswith(f"rank 1 at {named(trace, 1, 2)} failed: ")
    assert "KeyError: 'a key that is not there'" in sentence


def test_gloos_message_loses_its_ornaments():
    said = (
        "[/build/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:54159: "
        "Connection reset by peer. This is typically caused by a remote worker hanging"
    )
    error = backend_error(2, "operation 3", RuntimeError(said))
    assert str(error) == (
        "rank 2 at operation 3 lost another rank: Read error [127.0.0.1]:54159: "
        "Connection reset by peer"
    )
    assert error.cause == "peer"
    own = backend_error(
        2, "operation 3", RuntimeError("CUDA error: out of memory\nmore")
    )
    assert (own.cause, own.reason) == ("own", "CUDA error: out of memory")


def test_ctrl_c_ends_all_ranks(toy_file, replay_with, at_operation):
    def fault(rank, arguments):
        if rank == 1:
            at_operation(3, lambda: os.kill(os.getppid(), signal.SIGINT))

    with pytest.raises(Interrupted) as told:
        replay_with(toy_file(iterations=range(2000)), fault)
    assert told.value.signal == signal.SIGINT


def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    tmp_path, toy_file
):
    there = tmp_path / "there.h5"
    there.write_text("kept")
    trace = tmp_path / "no-such-trace.h5"
    with pytest.raises(ReplayError, match=r"is not overwritten.*--force"):
        local.replay(Request(trace=trace, out=there))
    with pytest.raises(ReplayError, match=r"the folder .* does not exist"):
        local.replay(Request(trace=trace, out=tmp_path / "no" / "out.h5"))
    with pytest.raises(ReplayError, match="is the input itself"):
        local.replay(Request(trace=there, out=there, force=True))
    assert there.read_text() == "kept"


# ---- real processes ----------------------------------------------------------------


def test_ranks_end_with_their_supervisor(toy_file, tmp_path):
    """As if by the kernel's out-of-memory killer: it has no time to say anything."""
    ran = subprocess.Popen(
        [sys.executable, "-m", "moetraffic.replay", toy_file(iterations=range(3000))],
        env={**os.environ, "COLOR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    steady = 0  # what a rank starts for a moment is marked too
    while steady < 10 and time.monotonic() < until:
        steady = steady + 1 if len(marked(str(tmp_path))) == 3 else 0
        time.sleep(0.05)
    assert steady == 10
    ran.kill()
    assert ran.wait() == -signal.SIGKILL
    while marked(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert marked(str(tmp_path)) == []


def marked(color: str) -> list[int]:
    """Living processes with this mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"COLOR={color}".encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if mine:
            found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_faults_have_a_hundred_clear_endings(tmp_path):
    results = tmp_path / "endings.json"
    ran = subprocess.run(
        [sys.executable, str(CAMPAIGN), "--runs", "100", "--json", str(results)],
        env={**os.environ, "PYTHONPATH": str(CAMPAIGN.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    endings = json.loads(results.read_text())
    assert len(endings) == 100, ran.stderr
    assert [e for e in endings if not e["clear"] or e["hung"] or e["left"]] == []


def test_the_page_has_every_fault_of_the_campaign_with_its_exit_code(monkeypatch):
    monkeypatch.syspath_prepend(CAMPAIGN.parent)
    import faulty_rank

    page = (CAMPAIGN.parents[1] / "docs" / "reliability.md").read_text()
    rows = faulty_rank.table()
    assert "\n".join(["|---|---|---|---|", *rows, ""]) in page
    assert len(rows) == len(faulty_rank.FAULTS) == len(set(rows))


@pytest.mark.slow
def test_an_interrupted_campaign_leaves_nothing(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    running = subprocess.Popen(
        [sys.executable, str(CAMPAIGN), "--runs", "2", "--seed", "1"],
        env={
            **os.environ,
            "PYTHONPATH": str(CAMPAIGN.parents[1]),
            "TMPDIR": str(folder),
        },
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )

    def of_the_run():
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(folder).encode() in environment and state not in "ZX":
                yield int(entry.name)

    while len(list(of_the_run())) < 3:  # a launcher and a rank, beside the campaign
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted after 0 of 2 runs" in error
    assert list(of_the_run()) == []
    assert list(folder.iterdir()) == []
