"""However ranks end, the launch ends, leaves nothing, and names who failed where."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moetraffic.launch.blame import process_state
from moetraffic.launch.board import State
from moetraffic.launch.environment import RankEnvironment
from moetraffic.launch.ranks import launch


def test_ranks_get_their_environment_and_their_store(run, tmp_path):
    outcome = run(
        """
        import json
        names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MOETRAFFIC_FILESTORE",
                 "OMP_NUM_THREADS", "COLOR"]
        (here / f"seen-{rank}").write_text(json.dumps([os.environ[n] for n in names]))
        """,
        ranks=3,
        environment={"COLOR": "red", "OMP_NUM_THREADS": "5"},
        start_s=math.inf,
    )
    assert outcome.ok
    assert (outcome.sentence, outcome.blame) == ("", None)
    assert outcome.exit_codes == (0, 0, 0)
    seen = [json.loads((tmp_path / f"seen-{r}").read_text()) for r in range(3)]
    assert [s[:3] for s in seen] == [[str(r), "3", str(r)] for r in range(3)]
    stores = {s[3] for s in seen}
    assert len(stores) == 1
    assert not Path(stores.pop()).exists()
    assert {(s[4], s[5]) for s in seen} == {("5", "red")}


def test_rows_of_the_board_arrive(run):
    done: list[list[int]] = []
    outcome = run(
        """
        row.note("iteration 1", State.READY, done=rank + 1, value=2.5)
        row.counter[0] = 7
        row.note(state=State.DONE)
        time.sleep(0.1)
        """,
        on_rows=lambda rows: done.append(rows["done"].tolist()),
    )
    assert outcome.ok
    assert done[-1] == [1, 2]


def test_a_killed_rank_is_named_with_its_operation_and_signal(run):
    outcome = run(
        """
        row.note("", State.READY)
        row.counter[0] = 7
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)
        sys.exit("RuntimeError: Connection closed by peer [127.0.0.1]:4000")
        """,
        ranks=3,
        grace_s=20.0,  # whoever is slow to start ends by itself too
        namer=lambda rank, n: f"operation {n}",
    )
    assert outcome.sentence == "rank 1 at operation 3 was ended by SIGKILL"
    assert outcome.exit_codes == (1, -signal.SIGKILL, 1)


def test_a_stopped_rank_is_named_though_others_report_first(run):
    outcome = run(
        """
        row.note("operation 0", State.READY)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        (here / f"ready-{rank}").touch()
        while len(list(here.glob("ready-*"))) < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        row.fail("Timed out waiting 200ms", Cause.PEER)
        sys.exit(1)
        """,
        ranks=3,
    )
    assert outcome.sentence.startswith("rank 2 at operation 0 was stopped by a signal")
    assert outcome.exit_codes == (1, 1, -signal.SIGKILL)


@pytest.mark.slow
def test_a_late_rank_is_named_by_the_operation_it_did_not_enter(run):
    outcome = run(
        """
        row.note("", State.READY)
        for n in range(4):
            if rank == 0 and n == 3:
                time.sleep(60)
            row.counter[0] = 2 * n + (1 if n == 3 else 2)
        time.sleep(0.3)
        sys.exit("RuntimeError: Timed out waiting 300ms for recv operation")
        """,
        namer=lambda rank, n: f"operation {n} of rank {rank}",
    )
    assert outcome.sentence == "rank 0 at operation 3 of rank 0 did not answer"


def test_silence_ends_at_the_deadline_but_counting_is_a_sign_of_life(run):
    outcome = run(
        """
        row.note("", State.READY)
        for n in range(6 if rank else 14):
            row.counter[0] = n
            time.sleep(0.1)
        time.sleep(60)
        """,
        silence_s=0.6,
        namer=lambda rank, n: f"operation {n}",
    )
    assert outcome.sentence == "rank 1 at operation 2 did not answer for 0.6 s"
    assert outcome.exit_codes == (-9, -9)


def test_a_rank_that_never_gets_ready_is_named(run):
    outcome = run(
        """
        row.note("start-up", State.READY if rank == 0 else State.STARTING)
        time.sleep(60)
        """,
        start_s=1.5,
    )
    assert outcome.sentence == (
        "rank 1 at start-up did not answer within 1.5 s of its start"
    )


def test_a_rank_that_ends_slowly_blames_none_that_announced_its_silence(run):
    outcome = run(
        """
        if rank == 0:
            row.note("the writing", State.READY, within_s=30.0)
            (here / "up-0").touch()
        else:
            while not (here / "up-0").exists():  # it may start later than the deadline
                time.sleep(0.01)
            row.note(state=State.DONE)
        time.sleep(0.8 if rank else 1.5)
        row.note(state=State.DONE)
        """,
        silence_s=0.4,
    )
    assert outcome.ok, outcome.sentence


def test_a_rank_that_does_not_end_after_it_is_done_is_ended(run):
    outcome = run(
        """
        row.note(state=State.DONE)
        time.sleep(60 if rank == 1 else 0)
        """,
        silence_s=0.4,
    )
    assert outcome.sentence.startswith("rank 1 did not end for 0.4 s")


def test_an_exception_is_told_by_its_last_line_and_ends_the_others(run):
    outcome = run(
        """
        if rank == 1:
            open("/no/such/file")
        time.sleep(60)
        """,
        start_s=math.inf,
    )
    assert outcome.sentence.startswith("rank 1 ended with exit code 1: FileNotFound")
    assert "No such file or directory: '/no/such/file'" in outcome.sentence
    assert outcome.stderr[1][0] == "Traceback (most recent call last):"
    assert outcome.exit_codes == (-9, 1)


def test_stderr_is_kept_up_to_a_bound_and_never_blocks_the_rank(run):
    outcome = run(
        """
        for n in range(20000):
            print("x" * 100, n, file=sys.stderr)
        sys.stderr.write("the last word")
        sys.exit(3)
        """,
        ranks=1,
    )
    assert len(outcome.stderr[0]) < 100
    assert outcome.sentence == "rank 0 ended with exit code 3: the last word"


def test_what_a_rank_started_ends_with_it(run, tmp_path):
    outcome = run(
        """
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (here / "child").write_text(str(child.pid))
        """,
        ranks=1,
    )
    assert outcome.ok
    assert process_state(int((tmp_path / "child").read_text())) == "ended"


def test_a_module_that_does_not_exist_is_named():
    outcome = launch(["-m", "no_such_module"], ranks=2, grace_s=0.2)
    assert "No module named no_such_module" in outcome.sentence


def test_an_error_in_the_callers_code_leaves_no_rank(run, tmp_path):
    def fail(rows) -> None:
        if rows["state"][0] == State.READY:
            raise LookupError("in the caller")

    with pytest.raises(LookupError):
        run("up(); time.sleep(60)", ranks=1, on_rows=fail)
    assert process_state(int((tmp_path / "pid-0").read_text())) == "ended"


@pytest.mark.parametrize("bad", [{"ranks": 0}, {"start_s": 0.0}, {"silence_s": -1.0}])
def test_ranks_and_deadlines_must_be_positive(bad):
    with pytest.raises(ValueError, match="must be positive"):
        launch(["-m", "this"], **{"ranks": 1, **bad})


def test_the_rank_of_another_launcher_is_kept(run, tmp_path):
    done = []
    outcome = run(
        """
        names = ["RANK", "WORLD_SIZE", "LOCAL_RANK"]
        told = [os.environ[n] for n in names]
        told.append(str("MOETRAFFIC_FILESTORE" in os.environ))
        (here / "rank_env").write_text(" ".join(told))
        row.note(done=1)
        time.sleep(0.1)
        sys.exit(3)
        """,
        rank_env=RankEnvironment(5, 8, 1),
        on_rows=lambda rows: done.append(rows["done"].tolist()),
    )
    assert (tmp_path / "rank_env").read_text() == "5 8 1 False"
    assert done[-1] == [1]  # before it, perhaps what the launcher noted
    assert outcome.sentence.startswith("rank 5 ended with exit code 3")


PARENT = """
import json, sys
from moetraffic.launch.ranks import launch
outcome = launch(sys.argv[2:], ranks=2, environment={"HERE": sys.argv[1]}, grace_s=20.0)
print(json.dumps([outcome.interrupted, outcome.exit_codes, outcome.ok]))
"""


@pytest.fixture
def parent(tmp_path, script, wait_until):
    """A launch in a process of its own, once both its ranks are up."""
    started = []

    def start(body: str) -> tuple[subprocess.Popen[str], list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(tmp_path), *script(body)],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        up = [tmp_path / f"up-{r}" for r in range(2)]
        wait_until(lambda: all(p.exists() for p in up), "the ranks did not start")
        return process, [int((tmp_path / f"pid-{r}").read_text()) for r in range(2)]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_forwarded_and_ranks_may_end_cleanly(parent, number, tmp_path):
    process, pids = parent(
        """
        def end(number, _):
            with open(here / f"got-{rank}", "a") as file:
                file.write(f"{number} ")
            sys.exit(0)
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGTERM, end)
        up()
        time.sleep(60)
        """
    )
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert json.loads(out) == [number, [0, 0], False]
    assert [process_state(pid) for pid in pids] == ["ended"] * 2
    assert [(tmp_path / f"got-{r}").read_text() for r in range(2)] == [f"{number} "] * 2


def test_a_second_signal_ends_ranks_that_do_not_heed_the_first(
    parent, tmp_path, wait_until
):
    process, pids = parent(
        """
        def note(*_):
            (here / f"got-{rank}").touch()
        signal.signal(signal.SIGINT, note)
        up()
        while True:
            time.sleep(1)
        """
    )
    process.send_signal(signal.SIGINT)
    got = [tmp_path / f"got-{r}" for r in range(2)]
    wait_until(lambda: all(p.exists() for p in got), "the signal was not forwarded")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=15)
    assert json.loads(out) == [signal.SIGINT, [-9, -9], False]
    assert [process_state(pid) for pid in pids] == ["ended"] * 2


def test_ranks_end_when_the_launcher_is_killed(parent, wait_until):
    # deaf and stopped ranks too: nothing of their own doing may be needed
    process, pids = parent(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        up()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)
        """
    )
    process.kill()
    process.communicate(timeout=15)
    wait_until(
        lambda: all(process_state(p) == "ended" for p in pids),
        "ranks outlived the launcher",
    )
