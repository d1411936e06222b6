"""``moetraffic run``: the command is as it would be without it, and is captured."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from moetraffic.capture import log_merging
from moetraffic.capture.annotate import CallContext
from moetraffic.capture.hook import native
from moetraffic.capture.log import Log, RecordQueue
from moetraffic.cli import main
from moetraffic.cli.recording.run import harvest
from moetraffic.trace import Meta, Trace
from moetraffic.trace.merge import log_format as words
from moetraffic.trace.merge.log_folder import lock_state, log_folder, make_room

TRAIN = """
import json, os, sys
from pathlib import Path
import torch, torch.distributed as dist
import sitecustomize, models.layer  # of folders that moetraffic has as well
split = models.layer.split

assert sitecustomize.MINE == "mine", sitecustomize
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
log = []
for step in range(4):
    sent, received = split(rank, world, step), []
    for peer in range(world):
        received.append(split(peer, world, step)[rank])
    out = torch.empty(sum(received), 4)
    dist.all_to_all_single(out, torch.randn(sum(sent), 4), received, sent)
    model(out.mean(0, keepdim=True).nan_to_num()).sum().backward()
    log.append([16 * n for n in sent])
Path(os.environ["LOGS"], f"{rank}.json").write_text(json.dumps(log))
dist.destroy_process_group()
sys.stdout.write(f"rank {rank} of {world}\\n")  # in one piece: ranks share a pipe
sys.stdout.flush()
sys.exit(int(sys.argv[1]) if rank == world - 1 else 0)
"""
LAYER = """
def split(rank, world, step):
    return [(2 * rank + peer * step + 1) % 5 for peer in range(world)]
"""


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers of this process compile nothing."""
    monkeypatch.setattr(native, "build_if_possible", lambda say: None)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A training repository with a folder ``models`` and a sitecustomize."""
    place = tmp_path / "repository"
    (place / "models").mkdir(parents=True)
    (place / "models" / "__init__.py").touch()
    (place / "models" / "layer.py").write_text(LAYER)
    (place / "train.py").write_text(TRAIN)
    (place / "site").mkdir()
    (place / "site" / "sitecustomize.py").write_text("MINE = 'mine'\n")
    (place / "logs").mkdir()
    return place


def surroundings(repository: Path) -> dict[str, str]:
    checkout = str(Path(__file__).parents[2])
    path = os.pathsep.join([str(repository / "site"), checkout])
    return os.environ | {
        "PYTHONPATH": path,
        "LOGS": str(repository / "logs"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }


def logged(repository: Path, world: int) -> list[list[list[int]]]:
    """What each rank sent to each, by step."""
    logs = [
        json.loads((repository / "logs" / f"{rank}.json").read_text())
        for rank in range(world)
    ]
    return [list(rows) for rows in zip(*logs, strict=True)]


def exchanged(path: Path) -> list[list[list[int]]]:
    with Trace.open(path) as trace:
        of = trace.find(operation="all_to_all", kind=None)
        order = np.argsort(trace.times(of)[0][:, 0], kind="stable")
        matrices: list[list[list[int]]] = trace.wire(of[order]).tolist()
    return matrices


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def torchrun(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *map(str, arguments)]


def test_torchrun_is_captured_and_stays_what_it_was(repository: Path) -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "moetraffic", "run", "-o", "run.h5"),
            *("--model", "mine", "--k", "1", "--"),
            *torchrun("--nproc-per-node", 2, "train.py", 0),
        ],
        cwd=repository,
        env=surroundings(repository),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert sorted(ran.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert "run.h5: " in ran.stderr
    assert "mine" in ran.stderr
    assert exchanged(repository / "run.h5") == logged(repository, 2)
    with Trace.open(repository / "run.h5") as trace:
        assert trace.meta.complete
        assert (trace.meta.world, trace.meta.model, trace.meta.k) == (2, "mine", 1)
        of = trace.find(operation="all_reduce", kind=None)
        assert (trace.volume(of).sum(0) == 4 * 20 * 4).all()  # DDP's, each step
    assert {p.name for p in repository.iterdir()} == {
        *("logs", "models", "run.h5", "site", "train.py"),
    }


@pytest.mark.slow
def test_ranks_on_two_nodes_make_one_trace(repository: Path) -> None:
    port = free_port()
    nodes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "moetraffic", "run", "-o", "run.h5", "--"),
                *torchrun("--nnodes", 2, "--node-rank", node, "--nproc-per-node", 2),
                *("--master-addr", "127.0.0.1", "--master-port", port),
                *("train.py", "0"),
            ],
            cwd=repository,
            env=surroundings(repository),
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    said = [node.communicate(timeout=200)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert exchanged(repository / "run.h5") == logged(repository, 4)
    assert sum("run.h5: " in text for text in said) == 1, said
    assert not log_folder(repository / "run.h5").exists()


SPAWN = """
import json, os, sys, torch, torch.distributed as dist

def rank(index, world):
    sys.argv[1:] = ["0"]
    os.environ.update(RANK=str(index), WORLD_SIZE=str(world))
    exec(open("train.py").read(), {"__name__": "ranks"})

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, (3,), nprocs=3)
"""


@pytest.mark.slow
def test_spawned_ranks_are_captured(repository: Path) -> None:
    (repository / "spawn.py").write_text(SPAWN)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "moetraffic", "run", "-o", "run.h5", "--"),
            *(sys.executable, "spawn.py"),
        ],
        cwd=repository,
        env=surroundings(repository)
        | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert exchanged(repository / "run.h5") == logged(repository, 3)


@pytest.mark.slow
def test_exported_variables_capture_without_a_launcher(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = surroundings(repository)
    assert main(["run", "-o", str(repository / "run.h5"), "--env"]) == 0
    exports = capsys.readouterr().out
    command = " ".join(torchrun("--nproc-per-node", 3, "train.py", 0))
    script = f"set -e\n{exports}\n{command}\n"
    subprocess.run(["sh", "-c", script], cwd=repository, env=env, check=True)
    assert main(["merge", str(repository / "run.h5.logs")]) == 0
    assert exchanged(repository / "run.h5") == logged(repository, 3)


# gloo itself finds addresses that the ranks before the restart left under its prefix;
# what the recorder shares stays in the one store
ATTEMPT = """
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.distributed_c10d._world.group_count = attempt
if attempt and os.environ["RANK"] == "0":
    import time
    time.sleep(1)  # rank 1 asks before rank 0 decides
"""


@pytest.mark.slow
def test_restarted_ranks_agree_on_a_second_trace(repository: Path) -> None:
    train = TRAIN.replace("dist.init", f"{ATTEMPT}\ndist.init")
    crash = "if attempt == 0: raise OSError('bus')\ndist.destroy"
    (repository / "train.py").write_text(train.replace("dist.destroy", crash))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "moetraffic", "run", "-o", "run.h5", "--"),
            *torchrun("--nproc-per-node", 2, "--max-restarts", 1, "train.py", 0),
        ],
        cwd=repository,
        env=surroundings(repository),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert exchanged(repository / "run-2.h5") == logged(repository, 2)
    with Trace.open(repository / "run-2.h5") as trace:
        assert trace.meta.complete
    with Trace.open(repository / "run.h5") as trace:
        assert not trace.meta.complete
        assert "OSError" in trace.meta.missing or "not closed" in trace.meta.missing


# ---- the command is what it would be --------------------------------------------


def python(program: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program)]


def test_arguments_streams_folder_and_exit_code_pass_through(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = """
        import json, os, signal, sys
        told = [sys.argv[1:], os.getcwd(), os.environ["HOME"]]
        told += [signal.getsignal(signal.SIGINT) is signal.default_int_handler]
        told += [signal.getsignal(n) is signal.SIG_DFL for n in (1, 3, 10, 12, 15)]
        print(json.dumps(told))
        sys.stderr.write("to standard error\\n")
        sys.exit(3)
    """
    given = ["-o", "--force", "a b", "--", "", "*"]
    # what is ignored here, as SIGHUP is under nohup, stays ignored in the command
    default = [signal.getsignal(n) is not signal.SIG_IGN for n in (1, 3, 10, 12, 15)]
    output = tmp_path / "run.h5"
    code = main(["run", "-o", str(output), "--", *python(program), *given])
    out, said = capfd.readouterr()
    assert code == 3
    assert json.loads(out) == [given, os.getcwd(), os.environ["HOME"], True, *default]
    first, second = said.splitlines()
    assert first == "to standard error"
    assert "no process of the command imported torch with the start-up hook" in second
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["true"], "does not use torch"),
        *(
            pytest.param(command, why, marks=pytest.mark.slow)
            for command, why in (
                ([sys.executable, "-I", "-c", "import torch"], "options -I or -E"),
                (python("import torch"), "completed init_process_group"),
                (
                    ["env", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", *python("import torch")],
                    "a script sets TORCH_DEVICE_BACKEND_AUTOLOAD=0",
                ),
                (["env", "PYTHONPATH=.", *python("import torch")], "replaces PYTHON"),
            )
        ),
    ],
)
def test_says_why_nothing_was_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str], why: str
) -> None:
    assert main(["run", "-o", str(tmp_path / "run.h5"), "--", *command]) == 0
    out, said = capfd.readouterr()
    assert out == ""
    assert said.startswith("moetraffic: nothing was recorded by run: ")
    assert why in said
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_refused_before_the_command_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.h5"
    there.write_text("somebody's")
    left = log_folder(tmp_path / "left.h5")
    left.mkdir()
    words.log_file(left, 0, 0).touch()
    started = tmp_path / "started"
    for output, why in (
        (there, "exists and is not overwritten"),
        (tmp_path / "left.h5", "of an earlier capture"),
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "run.h5", "does not exist"),
    ):
        code = main(["run", "-o", str(output), "--", "touch", str(started)])
        out, said = capfd.readouterr()
        assert (code, out, said.count("\n")) == (2, "", 1)
        assert why in said
    assert main(["run", "-o", str(tmp_path / "new.h5")]) == 2
    assert "there is neither" in capfd.readouterr().err
    assert main(["run", "--env", "-o", str(tmp_path / "new.h5"), "--", "true"]) == 2
    assert "both were given" in capfd.readouterr().err
    assert not started.exists()
    assert there.read_text() == "somebody's"


def test_a_command_that_is_not_there_ends_as_in_a_shell(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("no program")
    for command, code in (("no-such-program", 127), (str(text), 126)):
        assert main(["run", "-o", str(tmp_path / "run.h5"), "--", command]) == code
        assert "cannot be run" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == [text]


def test_a_python_file_is_run_with_python(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "mymoe.py"
    program.write_text("import sys; print(*sys.argv[1:])")
    assert main(["run", "-o", str(tmp_path / "run.h5"), str(program), "2 ranks"]) == 0
    assert capfd.readouterr().out == "2 ranks\n"


COUNTS = """
import os, signal, sys, time
heard = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: heard.append(number))
print("ready", flush=True)
while signal.SIGTERM not in heard:
    time.sleep(0.02)
time.sleep(0.3)
print(sorted(heard), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_signals_reach_the_command_once(tmp_path: Path) -> None:
    """Ctrl-C comes from the terminal to both; what another process sends is passed."""
    launcher = [sys.executable, "-m", "moetraffic", "run", "-o", "run.h5", "--"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [*launcher, *python(COUNTS)])
    text = b""

    def until(word: bytes) -> None:
        nonlocal text
        while word not in text:
            text += os.read(terminal, 1024)

    until(b"ready")
    os.write(terminal, b"\x03")
    time.sleep(0.3)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        os.kill(pid, number)
    until(b"]")
    until(b"nothing was recorded")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"[2, 10, 15]" in text
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGKILL


# ---- what the ranks left ----------------------------------------------------------


@contextmanager
def recording(path: Path, rank: int, world: int = 2) -> Iterator[None]:
    """Record one all-reduce of four float32, of which 16 bytes are this rank's."""
    folder, queue = log_folder(path), RecordQueue()
    about = {"meta": Meta(world=world).as_dict(), "node": "node", "placement": {}}
    about |= {"begun": 0, "threads": [threading.get_ident()]}
    state = lock_state(folder, rank, force=False)
    log = Log(folder, rank, state, about, queue, lambda: None, print)
    try:
        call = [0] * words.CALL_HEAD
        call[:2] = words.CALL, words.CALL_HEAD
        call[4] = words.OPERATIONS.index("all_reduce")
        call[5] = log.number("group", ("0", "world", tuple(range(world))))
        call[6] = log.number("context", CallContext())
        call[7] = log.number("dtype", torch.float32)
        call[8] = log.number("thread", threading.get_ident())
        call[11:17] = -1, -1, -1, -1, 16, 4  # link, node, source, destination, bytes
        queue.put_call(array("q", call))
        log.put(words.END, 5, 0, 0, 9)
        yield
    finally:
        log.close()


def leave(path: Path, rank: int, *, world: int = 2) -> None:
    with recording(path, rank, world):
        pass


@pytest.fixture
def gather(tmp_path: Path) -> Callable[..., None]:
    """End as a launcher whose command began just now."""
    began = time.time() - 1

    def end(path: Path, *, force: bool = False) -> None:
        notes = tmp_path / "notes"
        notes.mkdir(exist_ok=True)
        harvest(path, began, notes, force=force)

    return end


def test_the_last_of_several_launchers_merges(
    tmp_path: Path,
    gather: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(log_merging, "PATIENCE_S", 0.2)
    path = tmp_path / "run.h5"
    make_room(path, force=False)
    leave(path, 0)
    with recording(path, 1):
        gather(path)
        assert "ranks [1] still record" in capfd.readouterr().err
        assert not path.exists()
    gather(path)
    assert "run.h5: " in capfd.readouterr().err
    with Trace.open(path) as trace:
        assert trace.meta.complete
        assert trace.volume(trace.find(kind=None)).tolist() == [[16, 16]]
    gather(path)  # one that was slower still has nothing to say, and changes nothing
    assert capfd.readouterr().err == ""
    assert path.exists()


def test_ranks_that_came_later_are_added_to_what_a_launcher_merged(
    tmp_path: Path, gather: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.h5"
    leave(path, 0)
    gather(path)
    assert "rank 1 recorded nothing" in capfd.readouterr().err
    time.sleep(0.01)
    leave(path, 1)
    gather(path)
    said = capfd.readouterr().err
    assert "captured, 2 ranks" in said
    assert "recorded nothing" not in said
    with Trace.open(path) as trace:
        assert trace.meta.complete
    assert not log_folder(path).exists()


def test_what_was_there_is_replaced_with_force_alone_and_only_by_a_record(
    tmp_path: Path, gather: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.h5"
    path.write_text("somebody's")
    os.utime(path, (1, 1))
    gather(path, force=True)
    assert "nothing was recorded" in capfd.readouterr().err
    leave(path, 0, world=1)
    assert main(["run", "-o", str(path), "--", "true"]) == 2
    with pytest.raises(Exception, match="is not overwritten"):
        gather(path)
    assert path.read_text() == "somebody's"
    gather(path, force=True)
    with Trace.open(path) as trace:
        assert len(trace.occurrences) == 1


def test_a_trace_in_the_place_of_the_command_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "x.h5"
    assert main(["run", str(path), "--", "torchrun", "train.py"]) == 2
    assert f"name the trace to write with -o {path}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
