"""Run several trainings in parallel on a simulated lossy network."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.errors import MoetrafficError
from moetraffic.patterns import Dropping, Workload


def final_losses(
    base: Workload,
    dropping: Dropping,
    shares: Sequence[float],
    *,
    seeds: int,
    workers: int | None = None,
    on_run: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> Float64:
    """Train for each share of lost bytes and seed; return final training losses.

    ``base`` is trained on virtual ranks, with S ``seeds`` that count from its own; the
    share of ``dropping`` is replaced by each of ``shares`` ``[P]``, from 0 to below 1.
    At most ``workers`` trainings run at a time, by default one a core.  ``on_run`` is
    called after each training with the number of completed ones and a mapping of its
    share, seed, loss and other results.  The losses are ``[P, S]`` float64.
    """
    plans = [
        replace(
            base,
            training=replace(base.training, seed=base.training.seed + seed),
            dropping=replace(dropping, share=share),
        )
        for share in shares
        for seed in range(seeds)
    ]
    losses = np.full((len(shares), seeds), np.nan)
    cores = workers or len(os.sched_getaffinity(0))
    # a new session, as Ctrl-C must reach only the caller, which ends the workers
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "moetraffic.models.lossy_training"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(min(max(1, cores), len(plans)))
    ]
    idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
    for program in programs:
        idle.put(program)
    pool = ThreadPoolExecutor(len(programs))
    try:
        trainings = {pool.submit(_train, p, idle): n for n, p in enumerate(plans)}
        for count, training in enumerate(as_completed(trainings), 1):
            number, result = trainings[training], training.result()
            at, seed = divmod(number, seeds)
            losses[at, seed] = result["loss"]
            if on_run is not None:
                run = {"share": shares[at], "seed": plans[number].training.seed}
                on_run(count, {**run, **result})
    finally:
        for program in programs:
            program.kill()
            program.wait()
        pool.shutdown(cancel_futures=True)
    return losses


def _train(
    plan: Workload, idle: queue.SimpleQueue[subprocess.Popen[str]]
) -> dict[str, Any]:
    """Train a workload in an idle worker process, which answers a line with a line."""
    program = idle.get()
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    answer = ""
    with contextlib.suppress(OSError):
        program.stdin.write(plan.to_json() + "\n")
        program.stdin.flush()
        answer = program.stdout.readline()
    if not answer.strip():
        lines = program.stderr.read().strip().splitlines()
        why = lines[-1] if lines else f"exit code {program.poll()}"
        raise MoetrafficError(f"a training ended early: {why}")
    idle.put(program)
    result: dict[str, Any] = json.loads(answer)
    if "error" in result:
        raise MoetrafficError(result["error"])
    return result
