"""Traces with known bytes, plans of them, and ranks that are forked."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moetraffic.errors import ReplayError
from moetraffic.launch import board, ranks
from moetraffic.launch.environment import FILE_STORE, PARENT, RankEnvironment
from moetraffic.replay.options import Options
from moetraffic.replay.plan.operations import Plan, operations
from moetraffic.replay.plan.program import Program, Timing, programs
from moetraffic.replay.run import main, replay
from moetraffic.result import Result
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


def planned(
    trace: Trace, *, of: Collection[int] | None = None, **options: Any
) -> tuple[Plan, dict[int, Program]]:
    """Plan of a trace, and the programs of some ranks, or of all."""
    plan = operations(trace, **options)
    return plan, programs(trace, plan, range(plan.world) if of is None else of)


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
    *(FILE_STORE, PARENT, board.PATH),
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is no rank, and computes with one thread."""
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(board, "_own", None)
    torch.set_num_threads(1)


class Child:
    """A forked process, with what the launcher uses of ``subprocess.Popen``."""

    def __init__(self, environment: Mapping[str, str], work: Callable[[], Any]) -> None:
        read, write = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            self.stderr = open(read, errors="replace")  # noqa: SIM115
            return
        code = 99
        try:
            os.setsid()
            os.dup2(write, 2)
            faulthandler.disable()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(environment)
            board._own = None
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - for its life
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


@pytest.fixture
def replay_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Replay with a fault: ``fault(rank, settings)`` runs in each rank beforehand.

    ``settings`` is the file of the options.
    """
    pids: list[int] = []

    def run(
        trace: Path, fault: Callable[[int, Path], None] | None = None, **options: Any
    ) -> Result:
        def start(command: Sequence[str], environment: Mapping[str, str]) -> Child:
            assert command[:2] == ["-m", "moetraffic.replay.run"]

            def work() -> None:
                if fault is not None:
                    fault(int(os.environ["RANK"]), Path(command[2]))
                main(*command[2:])

            child = Child(environment, work)
            pids.append(child.pid)
            return child

        monkeypatch.setattr(ranks, "start", start)
        options.setdefault("timeout_s", 30.0)
        nproc = options.pop("nproc", None)
        return replay(Options(trace=trace, **options), nproc=nproc)

    yield run
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def plain(value: Any) -> Any:
    """What a rank returns, as JSON can say it."""
    if isinstance(value, Timing):
        return {name: array.tolist() for name, array in vars(value).items()}
    if isinstance(value, ReplayError):
        return {"refused": str(value)}
    return value.tolist() if hasattr(value, "tolist") else str(value)


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """Run ``work(rank_env)`` on several ranks; what each returns, as JSON holds it.

    Errors are returned too: of ReplayErrors the text, others fail the test.
    """
    children: list[Child] = []

    def run(world: int, work: Callable[[RankEnvironment], Any]) -> list[Any]:
        results = [tmp_path / f"result-{len(children)}-{r}" for r in range(world)]
        store = tmp_path / f"store-{len(children)}"
        started = []
        for rank in range(world):

            def one(rank: int = rank) -> None:
                try:
                    value = work(RankEnvironment(rank, world, rank))
                except ReplayError as error:
                    value = error
                results[rank].write_text(json.dumps(value, default=plain))

            env = {"RANK": str(rank), "WORLD_SIZE": str(world), FILE_STORE: str(store)}
            started.append(Child({**os.environ, **env}, one))
        children.extend(started)
        until_s = time.monotonic() + 60
        while any(child.returncode is None for child in started):
            for child in started:
                if child.returncode is None:
                    pid, status = os.waitpid(child.pid, os.WNOHANG)
                    if pid:
                        child.returncode = os.waitstatus_to_exitcode(status)
            assert time.monotonic() < until_s, "ranks hang"
            time.sleep(0.01)
        said = [child.stderr.read() for child in started]
        assert [child.returncode for child in started] == [0] * world, said
        return [json.loads(r.read_text()) for r in results]

    yield run
    for child in children:
        if child.returncode is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        child.stderr.close()


class Tripwire:
    """A rank's counter of operations, that does something before the n-th."""

    def __init__(self, counter: Any, n: int, then: Callable[[], object]) -> None:
        self.counter, self.entered, self.then = counter, 2 * n + 1, then

    def __getitem__(self, index: int) -> Any:
        return self.counter[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.counter[index] = value
        if value == self.entered:
            self.then()


@pytest.fixture
def at_operation() -> Callable[[int, Callable[[], object]], None]:
    """Make this rank do something when it enters its n-th operation of all passes."""

    def set_up(n: int, then: Callable[[], object]) -> None:
        row = board.own()
        row.counter = Tripwire(row.counter, n, then)  # type: ignore[assignment]

    return set_up
