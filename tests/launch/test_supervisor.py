"""However ranks end, the launch ends, leaves nothing, and names who failed where."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moetraffic.launch import Heartbeat, RankEnvironment, launch


def test_ranks_get_their_seat_and_their_store(run, tmp_path):
    outcome = run(
        """
        import json
        names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MOETRAFFIC_FILESTORE",
                 "OMP_NUM_THREADS", "COLOR"]
        (here / f"seen-{rank}").write_text(json.dumps([os.environ[n] for n in names]))
        beat("done")
        """,
        ranks=3,
        environment={"COLOR": "red", "OMP_NUM_THREADS": "5"},
        start_deadline_s=math.inf,
    )
    assert outcome.ok
    assert outcome.sentence == ""
    assert outcome.blame is None
    assert outcome.exit_codes == (0, 0, 0)
    assert outcome.killed == (False, False, False)
    seen = [json.loads((tmp_path / f"seen-{r}").read_text()) for r in range(3)]
    stores = {s[3] for s in seen}
    assert [s[:3] for s in seen] == [[str(r), "3", str(r)] for r in range(3)]
    assert len(stores) == 1
    assert not Path(stores.pop()).exists()
    assert {(s[4], s[5]) for s in seen} == {("5", "red")}


def test_heartbeats_arrive_in_order_with_their_fields(run):
    events: list[Heartbeat] = []
    run(
        """
        beat("start")
        beat("ready", threads=2)
        for n in range(3):
            beat("enter", f"operation {n}")
            beat("exit", f"operation {n}")
        beat("done")
        """,
        on_event=events.append,
    )
    for rank in range(2):
        mine = [e for e in events if e.rank == rank]
        assert [e.event for e in mine] == [
            "start",
            "ready",
            *["enter", "exit"] * 3,
            "done",
        ]
        assert mine[1].fields == {"threads": 2}
        assert mine[2].operation == "operation 0"


def test_a_killed_rank_is_named_with_its_operation_and_signal(run):
    outcome = run(
        """
        beat("ready")
        beat("enter", "operation 3")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)
        sys.exit("RuntimeError: Connection closed by peer [127.0.0.1]:4000")
        """,
        ranks=3,
        grace_s=20.0,  # whoever is slow to start ends by itself too
    )
    assert not outcome.ok
    assert outcome.blame is not None
    assert (outcome.blame.rank, outcome.blame.operation) == (1, "operation 3")
    assert outcome.sentence == "rank 1 at operation 3 was ended by SIGKILL"
    assert outcome.killed == (False, False, False)


def test_a_stopped_rank_is_named_though_others_report_first(run):
    outcome = run(
        """
        beat("ready")
        beat("enter", "operation 0")
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        # those who report do so at one time, however long one took to start
        (here / f"ready-{rank}").touch()
        while len(list(here.glob("ready-*"))) < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        beat("error", "operation 0", message="Timed out waiting 200ms", cause="peer")
        sys.exit(1)
        """,
        ranks=3,
    )
    assert outcome.blame is not None
    assert (outcome.blame.rank, outcome.blame.operation) == (2, "operation 0")
    assert "stopped" in outcome.blame.reason
    assert outcome.killed == (False, False, True)
    assert outcome.exit_codes == (1, 1, -signal.SIGKILL)


@pytest.mark.slow
def test_a_late_rank_is_named_by_the_operation_it_did_not_enter(run):
    outcome = run(
        """
        count = heartbeat.counter()
        beat("ready")
        for n in range(5):
            if rank == 0 and n == 3:
                time.sleep(60)
            count[0] = 2 * n + 1
            if n < 3:
                count[0] = 2 * n + 2
        time.sleep(0.3)
        sys.exit("RuntimeError: Timed out waiting 300ms for recv operation")
        """,
        namer=lambda rank, n: f"operation {n} of rank {rank}",
    )
    assert outcome.blame is not None
    assert outcome.blame.rank == 0
    assert outcome.blame.operation == "operation 3 of rank 0"
    assert "did not answer" in outcome.blame.reason


def test_silence_ends_at_the_deadline_for_operations(run):
    outcome = run(
        """
        beat("ready")
        beat("enter", "operation 7")
        if rank == 0:
            beat("exit", "operation 7")
            beat("enter", "operation 8")
        time.sleep(60)
        """,
        operation_deadline_s=0.5,
    )
    assert outcome.blame is not None
    assert outcome.blame.operation in ("operation 7", "operation 8")
    assert "did not answer for 0.5 s" in outcome.blame.reason
    assert outcome.killed == (True, True)


@pytest.mark.slow
def test_counting_operations_is_a_sign_of_life(run):
    outcome = run(
        """
        count = heartbeat.counter()
        beat("ready")
        for n in range(30):
            count[0] = n + 1
            time.sleep(0.05)
        """,
        operation_deadline_s=0.7,
    )
    assert outcome.ok, outcome.sentence


@pytest.mark.slow
def test_a_rank_that_never_gets_ready_is_named(run):
    outcome = run(
        """
        if rank == 1:
            time.sleep(60)
        beat("start")
        time.sleep(60)
        """,
        start_deadline_s=4.0,
    )
    assert outcome.blame is not None
    assert outcome.blame.rank == 1
    assert "within 4 s of its start" in outcome.blame.reason


def test_a_rank_that_ends_slowly_blames_none_that_announced_its_silence(run):
    outcome = run(
        """
        beat("ready")
        if rank == 0:
            beat("step", "the writing", within_s=30.0)
            (here / "up-0").touch()
        else:
            while not (here / "up-0").exists():  # it may start later than the deadline
                time.sleep(0.01)
            beat("done")
        time.sleep(1.0 if rank else 2.0)
        beat("done")
        """,
        operation_deadline_s=0.4,
    )
    assert outcome.ok, outcome.sentence


@pytest.mark.slow
def test_a_rank_that_does_not_end_after_it_is_done_is_ended(run):
    outcome = run(
        """
        beat("ready")
        beat("done")
        time.sleep(60 if rank == 1 else 0)
        """,
        operation_deadline_s=0.4,
    )
    assert not outcome.ok
    assert outcome.blame is not None
    assert outcome.blame.rank == 1
    assert "reported to be done" in outcome.blame.reason


def test_an_exception_is_told_by_its_last_line_and_ends_the_others(run):
    outcome = run(
        """
        if rank == 1:
            open("/no/such/file")
        time.sleep(60)
        """,
        start_deadline_s=math.inf,
    )
    assert outcome.blame is not None
    assert outcome.blame.rank == 1
    assert "exit code 1" in outcome.sentence
    assert "No such file or directory: '/no/such/file'" in outcome.sentence
    assert outcome.stderr[1][0] == "Traceback (most recent call last):"
    assert outcome.killed == (True, False)


@pytest.mark.slow
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
    assert outcome.stderr[0][-1] == "the last word"
    assert len(outcome.stderr[0]) < 100
    assert "exit code 3: the last word" in outcome.sentence


def test_what_a_rank_started_ends_with_it(run, tmp_path, is_alive):
    outcome = run(
        """
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (here / "child").write_text(str(child.pid))
        """,
        ranks=1,
    )
    assert outcome.ok
    assert not is_alive(int((tmp_path / "child").read_text()))


def test_a_command_that_does_not_exist_is_named():
    outcome = launch(["no-such-command-at-all"], ranks=2, grace_s=0.2)
    assert not outcome.ok
    assert "cannot run no-such-command-at-all: No such file" in outcome.sentence


@pytest.mark.slow
def test_other_bytes_in_the_pipe_do_no_harm(run):
    outcome = run(
        """
        fd = int(os.environ["MOETRAFFIC_HEARTBEAT"].split(":")[0])
        for line in (b"\\xff\\xfe\\n", b"[1, 2]\\n",
                     b'{"rank": 99, "event": "done"}\\n',
                     b'{"rank": 0, "event": ["x"]}\\n', b"x" * 3000):
            os.write(fd, line)
        """,
        ranks=1,
    )
    assert outcome.ok


def test_an_error_in_the_callers_code_leaves_no_rank(run, tmp_path, is_alive):
    def fail(event: Heartbeat) -> None:
        raise LookupError(event.event)

    with pytest.raises(LookupError, match="ready"):
        run("beat('ready'); time.sleep(60)", ranks=1, on_event=fail)
    assert not is_alive(int((tmp_path / "pid-0").read_text()))


@pytest.mark.parametrize(
    "bad", [{"ranks": 0}, {"start_deadline_s": 0.0}, {"operation_deadline_s": -1.0}]
)
def test_ranks_and_deadlines_must_be_positive(bad):
    with pytest.raises(ValueError, match="must be positive"):
        launch(["true"], **{"ranks": 1, **bad})


PARENT = """
import json, sys
from moetraffic.launch import launch
outcome = launch(sys.argv[2:], ranks=2, environment={"HERE": sys.argv[1]}, grace_s=20.0)
print(json.dumps([outcome.interrupted, outcome.exit_codes, outcome.killed, outcome.ok]))
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
def test_a_signal_is_forwarded_and_ranks_may_end_cleanly(
    parent, number, is_alive, tmp_path
):
    process, pids = parent(
        """
        def end(number, _):
            with open(here / f"got-{rank}", "a") as file:
                file.write(f"{number} ")
            beat("done")
            sys.exit(0)
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGTERM, end)
        up()
        time.sleep(60)
        """
    )
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert json.loads(out) == [number, [0, 0], [False, False], False]
    assert not any(is_alive(pid) for pid in pids)
    assert [(tmp_path / f"got-{r}").read_text() for r in range(2)] == [f"{number} "] * 2


@pytest.mark.slow
def test_a_second_signal_ends_ranks_that_do_not_heed_the_first(
    parent, is_alive, tmp_path, wait_until
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
    assert json.loads(out) == [signal.SIGINT, [-9, -9], [True, True], False]
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_ranks_end_when_the_launcher_is_killed(parent, is_alive, wait_until):
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
        lambda: not any(is_alive(p) for p in pids), "ranks outlived the launcher"
    )


@pytest.mark.slow
def test_a_seat_of_another_launcher_is_kept(run, tmp_path):
    events: list[Heartbeat] = []
    outcome = run(
        """
        names = ["RANK", "WORLD_SIZE", "LOCAL_RANK"]
        told = [os.environ[n] for n in names]
        told.append(str("MOETRAFFIC_FILESTORE" in os.environ))
        (here / "rank_env").write_text(" ".join(told))
        counter = heartbeat.counter()
        counter[0] = 3
        beat("step", iteration=1)
        sys.exit(3)
        """,
        rank_env=RankEnvironment(5, 8, 1),
        on_event=events.append,
    )
    assert (tmp_path / "rank_env").read_text() == "5 8 1 False"
    assert [(e.rank, e.event) for e in events] == [(5, "step")]
    assert outcome.exit_codes == (3,)
    assert outcome.sentence.startswith("rank 5 ended with exit code 3")
