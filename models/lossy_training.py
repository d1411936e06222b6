"""Train workloads on a simulated lossy network, several at a time.

``python -m moetraffic.models.lossy_training [WORKERS]`` reads workloads as JSON, one a
line, from standard input.  As each training ends it prints a line of JSON: ``number``
of the input line, and the result of :func:`run` or an ``error``.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from typing import Any

import torch

from moetraffic.errors import MoetrafficError
from moetraffic.launch.__main__ import follow
from moetraffic.patterns import Workload

from .virtual_training import VirtualTraining

EVALUATIONS = 32
"""Batches of a rank's size over which the final loss is taken."""


def run(workload: Workload) -> dict[str, Any]:
    """Train a workload on virtual ranks with packet loss and evaluate its loss.

    The result has ``loss``, nats a token on batches never trained on, with nothing
    lost; ``crossed`` and ``lost``, elements that should have crossed the network at the
    site, and those that did not arrive.
    """
    torch.set_num_threads(1)  # one worker process per core
    training = VirtualTraining(workload)
    for iteration in range(workload.training.iterations):
        losses = training.iterate(iteration)
        if not math.isfinite(sum(losses)):
            break  # training has diverged
    network = training.network
    return {
        "loss": training.evaluate(EVALUATIONS),
        "crossed": network.crossed if network else 0,
        "lost": network.lost if network else 0,
    }


def main(arguments: list[str]) -> int:
    """Train every workload read from standard input; return the exit code."""
    workloads = [Workload.from_json(line) for line in sys.stdin]
    cores = int(arguments[0]) if arguments else len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(
        max(1, min(cores, len(workloads))),
        multiprocessing.get_context("spawn"),
        initializer=follow,
        initargs=(os.getpid(),),
    )
    jobs = {pool.submit(run, each): n for n, each in enumerate(workloads)}
    for job in as_completed(jobs):
        result: dict[str, Any] = {"number": jobs[job]}
        try:
            result |= job.result()
        except MoetrafficError as error:
            result["error"] = str(error)
        except BrokenExecutor:
            result["error"] = "a training was killed: lower --workers if memory lacks"
        print(json.dumps(result), flush=True)
        if "error" in result:
            pool.shutdown(cancel_futures=True)
            return 2
    pool.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
