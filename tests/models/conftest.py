"""Runs the jobs of ``jobs.py`` on several gloo ranks, each a process of its own."""

from __future__ import annotations

import multiprocessing
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

JOBS = Path(__file__).with_name("jobs.py")
PATIENCE_S = 100.0

Run = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run_ranks(job, world, **arguments)``: each rank's result, by rank."""
    # the server imports torch once; ranks are forked from it and start at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["moetraffic.models"])

    def run(job: str, world: int = 4, **arguments: Any) -> list[Any]:
        folder = tmp_path_factory.mktemp(job)
        processes = [
            context.Process(
                target=runpy.run_path,
                args=(str(JOBS),),
                kwargs={
                    "init_globals": {"TASK": (job, rank, world, folder, arguments)},
                    "run_name": "__rank__",
                },
            )
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE_S)
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for rank in late:
            processes[rank].kill()
            processes[rank].join()
        said = [path.read_text() for path in sorted(folder.glob("*.error"))]
        assert not late, f"ranks {late} of {job} never ended; {said}"
        assert not said, "\n".join(said)
        assert [process.exitcode for process in processes] == [0] * world
        return [
            torch.load(folder / f"{rank}.pt", weights_only=False)
            for rank in range(world)
        ]

    return run
