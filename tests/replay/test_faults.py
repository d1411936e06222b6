"""Whatever is broken in a replay, it ends, and the rank and the operation are named."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

import moetraffic
from moetraffic.errors import Interrupted, ReplayError
from moetraffic.replay import payload
from moetraffic.replay import run as run_module
from moetraffic.replay.options import Options
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.plan.program import program
from moetraffic.replay.results import result as result_module
from moetraffic.replay.run import counted_name, replay
from moetraffic.trace.trace import Trace

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


def named(path: Path, rank: int, n: int) -> str:
    """Return the name of a rank's n-th operation, counted from the verification."""
    with Trace.open(path) as trace:
        plan = operations(trace)
        own = program(trace, plan, rank)
        return counted_name(Options(trace=path), plan, own, n)


@pytest.mark.parametrize(
    ("n", "number"),
    [
        (3, signal.SIGKILL),
        pytest.param(LENGTH + 7, signal.SIGSEGV, marks=pytest.mark.slow),
    ],
)
def test_a_killed_rank_is_named_with_its_operation(
    toy_file, replay_with, at_operation, n, number
):
    def fault(rank, settings):
        if rank == 1:
            at_operation(n, lambda: os.kill(os.getpid(), number))

    path = toy_file(world=3)
    sentence = failure(replay_with, path, fault)
    assert f"rank 1 at {named(path, 1, n)} was ended by {number.name}" in sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSTOP), "was stopped by a signal"),
        (lambda: time.sleep(60), "did not answer"),
        (lambda: {}["a key"], "failed: KeyError: 'a key'"),
    ],
    ids=["stopped", "late", "crashed"],
)
def test_a_rank_that_does_not_come_is_named(
    toy_file, replay_with, what, said, at_operation
):
    def fault(rank, settings):
        if rank == 2:
            at_operation(4, what)

    path = toy_file(world=3)
    sentence = failure(replay_with, path, fault, timeout_s=2.0)
    assert sentence.startswith(f"rank 2 at {named(path, 2, 4)} {said}")


def other_options(settings: Path, **changed: object) -> None:
    """Change the options of this rank."""
    options = replace(Options.from_json(settings.read_text()), **changed)
    Options.from_json = lambda text: options  # type: ignore[method-assign,assignment]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "changed", "said"),
    [
        ("", {"seed": 1}, "another plan than rank 0: "),
        ("", {"timeout_s": 9.0}, "timeout_s 9.0, while rank 0 has "),
        ("", {"verify": "none"}, "verify none, while rank 0 has "),
        ("0.0.1", {"seed": 1}, "moetraffic 0.0.1, while rank 0 has "),
    ],
)
def test_what_differs_on_one_rank_is_named(
    toy_file, replay_with, version, changed, said
):
    if "seed" in changed:
        changed = {"trace": toy_file(world=3, **changed)}

    def fault(rank, settings):
        if rank == 2:
            moetraffic.__version__ = version or moetraffic.__version__
            other_options(settings, **changed)

    sentence = failure(replay_with, toy_file(world=3), fault)
    assert sentence.startswith(f"rank 2 at the agreement on the plan has {said}")


@pytest.mark.slow
def test_a_file_that_one_rank_does_not_have_is_named(toy_file, replay_with, tmp_path):
    def fault(rank, settings):
        if rank == 1:
            other_options(settings, trace=tmp_path / "gone.h5")

    sentence = failure(replay_with, toy_file(), fault)
    assert sentence.startswith("rank 1 at start-up failed: ")
    assert "gone.h5" in sentence


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
        plan = operations(trace)
        own = program(trace, plan, 0)
        wrong = next(n for n in range(len(own)) if own.sends(n)[:1].sum() > 1000)
        place = plan.name(int(own.operation[wrong]))

    def fault(rank, settings):
        if rank == 0:
            plain = payload.fill

            def fill(plan, of_rank, n, buffers):
                plain(plan, of_rank, n, buffers)
                if n == wrong:
                    harm(buffers[0])

            payload.fill = fill

    sentence = failure(replay_with, path, fault)
    assert sentence.startswith(f"rank 0 at {place} sent bytes that did not")
    assert said in sentence


@pytest.mark.slow
def test_a_lack_of_memory_is_named_before_it_is_allocated(toy_file, replay_with):
    def fault(rank, settings):
        if rank == 1:
            run_module.devices.available_bytes = lambda: 10_000

    sentence = failure(replay_with, toy_file(world=3), fault)
    assert sentence.startswith("rank 0 at start-up has too little memory: its buffers")
    assert "and those of 2 more ranks need " in sentence
    assert "where 10.00 kB are free" in sentence


def test_a_full_disk_loses_nothing(toy_file, replay_with, tmp_path, monkeypatch):
    (tmp_path / "kept").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "kept"))

    def fault(rank, settings):
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
        plan = operations(made)
        assert (plan.bottleneck_bytes == operations(trace).bottleneck_bytes).all()
        assert (made.times(plan.occurrence[:1])[0] > 0).all()


@pytest.mark.slow
def test_a_long_writing_is_no_silence(toy_file, replay_with, tmp_path):
    def fault(rank, settings):
        plain = result_module.write

        def slow(*given, **named):
            time.sleep(2.5)  # the longest silence of an operation is 2.3 s
            plain(*given, **named)

        result_module.write = slow

    out = tmp_path / "out.h5"
    replay_with(toy_file(), fault, out=out, timeout_s=0.2)
    assert out.exists()


def test_ctrl_c_ends_all_ranks(toy_file, replay_with, at_operation):
    def fault(rank, settings):
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
        replay(Options(trace=trace, out=there))
    with pytest.raises(ReplayError, match=r"the folder .* does not exist"):
        replay(Options(trace=trace, out=tmp_path / "no" / "out.h5"))
    with pytest.raises(ReplayError, match="is the input itself"):
        replay(Options(trace=there, out=there, force=True))
    assert there.read_text() == "kept"


# ---- real processes ----------------------------------------------------------------


def marked(mark: str) -> list[int]:
    """Living processes with this text in their environment."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if mark.encode() in (entry / "environ").read_bytes() and state not in "ZX":
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def test_ranks_end_with_their_supervisor(toy_file, tmp_path):
    """As if by the kernel's out-of-memory killer: it has no time to say anything."""
    ran = subprocess.Popen(
        [sys.executable, "-m", "moetraffic.replay", toy_file(iterations=range(3000))],
        env={**os.environ, "COLOR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    while len(marked(str(tmp_path))) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    assert ran.poll() is None
    ran.kill()
    assert ran.wait() == -signal.SIGKILL
    while marked(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert marked(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_sixty_faults_have_sixty_clear_endings(tmp_path):
    results = tmp_path / "endings.json"
    ran = subprocess.run(
        [sys.executable, str(CAMPAIGN), "--runs", "60", "--json", str(results)],
        env={**os.environ, "PYTHONPATH": str(CAMPAIGN.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    endings = json.loads(results.read_text())
    assert len(endings) == 60, ran.stderr
    assert [e for e in endings if not e["clear"] or e["hung"] or e["left"]] == []


def test_the_page_has_every_fault_of_the_campaign_with_its_exit_code(monkeypatch):
    monkeypatch.syspath_prepend(CAMPAIGN.parent)
    import faulty_rank

    page = (CAMPAIGN.parents[1] / "docs" / "reliability.md").read_text()
    rows = faulty_rank.table()
    assert "\n".join(["|---|---|---|---|", *rows, ""]) in page
    assert len(rows) == len(faulty_rank.FAULTS) == len(set(rows))
