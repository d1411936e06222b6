"""Traces with known bytes, and ranks that fail on purpose."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment, heartbeat, rank_monitor
from moetraffic.launch.rank_process import RankProcess
from moetraffic.replay import make_plan
from moetraffic.replay.__main__ import main
from moetraffic.replay.local import replay
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.request import Request
from moetraffic.replay.results.result import Replay
from moetraffic.trace.model import (
    Group,
    Meta,
    Occurrences,
    Site,
    Source,
    Steps,
)
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.trace import Trace


def make_trace(
    *,
    world: int = 2,
    iterations: Sequence[int] = (0, 1, 2),
    groups: Sequence[tuple[int, ...]] | None = None,
    layers: Sequence[int] = (1, 3),
    seed: int = 0,
    largest: int = 3000,
    absent: Sequence[tuple[int, int]] = (),
) -> Trace:
    """Dispatch and combine of each layer and group, with random bytes.

    Each group also exchanges counts (8 bytes a pair, constant), and all ranks reduce a
    gradient, which is no all-to-all.  ``absent`` are (rank, iteration) without records.
    """
    rng = np.random.default_rng(seed)
    parts = [tuple(range(world))] if groups is None else list(groups)
    every = [Group(kind="ep", ranks=g) for g in parts]
    every.append(Group(kind="world", ranks=tuple(range(world))))
    sites: list[Site] = []
    clock: list[int] = []  # order of the sites in a step
    for number in range(len(parts)):
        for layer in layers:
            for phase in ("count", "dispatch", "combine"):
                counting = phase == "count"
                sites.append(
                    Site(
                        group=number,
                        operation="all_to_all",
                        phase="" if counting else phase,
                        label="count_exchange" if counting else "",
                        layer=layer,
                        dtype="float32",
                        row_bytes=1,
                    )
                )
                # deeper layers come first in time: not the order of the sites
                clock.append(100 * (50 - layer) + len(clock))
    sites.append(
        Site(
            group=len(parts),
            operation="all_reduce",
            label="gradient_sync",
        )
    )
    clock.append(99_999)
    when = np.tile(np.array(iterations, np.int64), len(sites))
    which = np.repeat(np.arange(len(sites), dtype=np.int32), len(iterations))
    size = np.array([len(every[s.group].ranks) for s in sites])[which]
    panels = {f"call_{world}/volume": ArrayPanel(np.full((1, world), 64))}
    labels = np.array([s.label for s in sites])[which]
    matrix = np.zeros(len(which), np.int64)
    for width in np.unique(size):
        mine = np.flatnonzero(size == width)
        # each call ends, 20 ns later, before the next one is issued
        issue = when[mine] * 10_000_000 + 30 * np.array(clock)[which[mine]]
        ranks = np.array([every[sites[s].group].ranks for s in which[mine]])
        gone = np.zeros(ranks.shape, bool)
        for rank, iteration in absent:
            gone |= (ranks == rank) & (when[mine] == iteration)[:, None]
        panels[f"call_{width}/present"] = ArrayPanel((~gone).astype(np.uint8))
        for name, later in (("issue", 0), ("start", 10), ("end", 20)):
            times = np.repeat(issue[:, None] + later, width, axis=1)
            panels[f"call_{width}/{name}"] = ArrayPanel(times.astype(np.int64))
        stored = mine[labels[mine] == ""]
        wire = rng.integers(0, largest, (len(stored), width, width), dtype=np.int64)
        wire[rng.random(wire.shape) < 0.1] = 0
        counts = np.full((1, width, width), 8)
        panels[f"call_{width}/wire"] = ArrayPanel(np.concatenate([counts, wire]))
        matrix[stored] = 1 + np.arange(len(stored))
    steps = len(iterations)
    return Trace(
        meta=Meta(world=world, dp=world, model="toy", layers=max(layers) + 1),
        groups=every,
        sites=sites,
        occurrences=Occurrences(
            iteration=when,
            site=which,
            sequence=np.full(len(which), -1),
            matrix=matrix,
            transposed=np.zeros(len(which), bool),
        ),
        panels=panels,
        steps=Steps(
            iteration=np.array(iterations, np.int64),
            kind=("train",) * steps,
            loss=np.full((steps, world), 2.5),
            tokens=np.full((steps, world), 64, np.int64),
            start=np.zeros((steps, world), np.int64),
            end=np.ones((steps, world), np.int64),
            source=np.full(steps, Source.ANNOTATED, np.uint8),
        ),
    )


@pytest.fixture(scope="session")
def toy() -> Callable[..., Trace]:
    return make_trace


@pytest.fixture(scope="session")
def toy_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A toy trace in a file."""
    folder, number = tmp_path_factory.mktemp("toys"), count()

    def write(**options: object) -> Path:
        path = folder / f"toy-{next(number)}.h5"
        make_trace(**options).save(path)  # type: ignore[arg-type]
        return path

    return write


# ---- ranks ----------------------------------------------------------------------
#
# Importing torch takes seconds, so most tests fork their ranks from this process,
# which has imported it.  What is forked is otherwise what the launcher starts.

LAUNCHER = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("MOETRAFFIC_FILESTORE", "MOETRAFFIC_HEARTBEAT", "MOETRAFFIC_COUNTERS"),
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is no rank, and computes with one thread."""
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


def fork(environment: dict[str, str], work: Callable[[], int], stderr: int) -> int:
    """Fork a process that does the work, with this environment; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.setsid()
        os.dup2(stderr, 2)
        faulthandler.disable()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - for the rank's life
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class Child:
    """What RankProcess uses of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            status = os.waitpid(self.pid, 0)[1]
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


Fault = Callable[[int, list[str]], None]


@pytest.fixture
def replay_with(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Replay]]:
    """Replay with a fault: ``fault(rank, arguments)`` runs in each rank beforehand."""
    pids: list[int] = []

    def run(trace: Path, fault: Fault | None = None, **options: Any) -> Replay:
        class ForkedRank(RankProcess):
            def __init__(
                self,
                command: Sequence[str],
                environment: dict[str, str],
                inherited: Sequence[int],
            ) -> None:
                read, write = os.pipe()

                def work() -> int:
                    arguments = list(command[3:])
                    assert command[1:3] == ["-m", "moetraffic.replay"]
                    if fault is not None:
                        fault(int(os.environ["RANK"]), arguments)
                    return main(arguments)

                self._process = Child(fork(environment, work, write))
                os.close(write)
                self.stderr = open(read, "rb", buffering=0)  # noqa: SIM115
                os.set_blocking(read, False)
                self._lines = deque(maxlen=60)
                self._unfinished = b""
                pids.append(self.pid)

        monkeypatch.setattr(rank_monitor, "RankProcess", ForkedRank)
        options.setdefault("timeout_s", 30.0)
        nproc = options.pop("nproc", None)
        return replay(Request(trace=trace, **options), nproc=nproc)

    yield run
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def written(found: Any) -> Any:
    """What a rank found, as JSON can say it."""
    if isinstance(found, list):
        return [written(each) for each in found]
    if isinstance(found, tuple):
        return {"tuple": [written(each) for each in found]}
    if isinstance(found, dict):
        return {"dict": [[written(k), written(v)] for k, v in found.items()]}
    if isinstance(found, np.ndarray):
        return {"array": found.tolist(), "dtype": str(found.dtype)}
    if isinstance(found, Timing):
        return {
            "timing": {f.name: written(getattr(found, f.name)) for f in fields(found)}
        }
    if isinstance(found, ReplayError):
        return {"refused": str(found)}
    if isinstance(found, Exception):
        return {"failed": "".join(traceback.format_exception(found))}
    return found


def read(told: Any) -> Any:
    """The same again; what failed otherwise than by a ReplayError fails the test."""
    if isinstance(told, list):
        return [read(each) for each in told]
    if not isinstance(told, dict):
        return told
    assert "failed" not in told, told["failed"]
    if "tuple" in told:
        return tuple(read(each) for each in told["tuple"])
    if "dict" in told:
        return {read(key): read(value) for key, value in told["dict"]}
    if "array" in told:
        return np.array(told["array"], told["dtype"])
    if "timing" in told:
        return Timing(**{name: read(value) for name, value in told["timing"].items()})
    return ReplayError(told["refused"])


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """Run ``work(rank_env)`` on several ranks; returns what each returns or is refused.

    With ``ends`` ranks may end as they like, and nothing is returned.
    """
    pids: list[int] = []

    def run(
        world: int,
        work: Callable[[RankEnvironment], Any],
        *,
        ends: bool = False,
        **more: str,
    ) -> list[Any]:
        results = [tmp_path / f"result-{len(pids)}-{r}" for r in range(world)]
        store = tmp_path / f"store-{len(pids)}"
        mine = []
        for rank in range(world):

            def one(rank: int = rank) -> int:
                try:
                    found = work(RankEnvironment(rank, world, rank))
                except Exception as error:
                    found = error
                results[rank].write_text(json.dumps(written(found)))
                return 0

            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MOETRAFFIC_FILESTORE": str(store),
                **more,
            }
            mine.append(fork(environment, one, 2))
        pids.extend(mine)
        until = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in mine):
            for pid in mine:
                if pid in pids and os.waitpid(pid, os.WNOHANG)[0]:
                    pids.remove(pid)
            assert time.monotonic() < until, "ranks hang"
            time.sleep(0.01)
        return [] if ends else [read(json.loads(r.read_text())) for r in results]

    yield run
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Tripwire:
    """A rank's counter of operations, that does something before the n-th."""

    def __init__(self, counter: Any, n: int, then: Callable[[], object]) -> None:
        self.counter, self.at, self.then = counter, 2 * n + 1, then

    def __getitem__(self, at: int) -> Any:
        return self.counter[at]

    def __setitem__(self, at: int, value: int) -> None:
        self.counter[at] = value
        if value == self.at:
            self.then()


@pytest.fixture
def at_operation() -> Callable[[int, Callable[[], object]], None]:
    """Make this rank do something when it enters its n-th operation of all passes."""

    def set_up(n: int, then: Callable[[], object]) -> None:
        plain = heartbeat.counter
        heartbeat.counter = lambda: Tripwire(plain(), n, then)  # type: ignore

    return set_up


@pytest.fixture
def named() -> Callable[[Trace, int, int], str]:
    """How a rank's n-th operation is called, counted from the verification."""

    def name(trace: Trace, rank: int, n: int) -> str:
        return make_plan(trace).counted_name(rank, n, verified=True)

    return name
