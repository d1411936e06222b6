"""Run several trainings in parallel on a simulated lossy network."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import MoetrafficError
from moetraffic.patterns import Dropping, Workload

from .worker_pool import answer_tasks


def final_losses(
    base: Workload,
    dropping: Dropping,
    shares: Sequence[float],
    *,
    seeds: int,
    workers: int | None = None,
    on_run: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> npt.NDArray[np.float64]:
    """Train for each share of lost bytes and seed; return final training losses.

    Parameters
    ----------
    base
        Workload to train on virtual ranks; seeds count from its own.
    dropping
        Where and how bytes are lost; its share is replaced.
    shares
        ``[P]`` shares of bytes that are lost, 0 to below 1.
    seeds
        Number S of trainings for each share.
    workers
        Number of concurrent trainings; None for the number of cores.
    on_run
        Called after each training with the number of completed ones and a mapping of
        its share, seed, loss and other results.

    Returns
    -------
    ndarray
        ``[P, S]`` float64 final losses.

    Raises
    ------
    LayoutError
        If a share is impossible, before the first training starts.
    MoetrafficError
        If a training fails.
    """
    training = base.training
    plans = [
        replace(
            base,
            training=replace(training, seed=training.seed + seed),
            dropping=replace(dropping, share=share),
        )
        for share in shares
        for seed in range(seeds)
    ]
    losses = np.full((len(shares), seeds), np.nan)
    cores = workers or len(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "moetraffic.models.lossy_training"]
    tasks = [plan.to_json() for plan in plans]
    done = answer_tasks(command, tasks, workers=max(1, cores))
    for count, (number, line) in enumerate(done, 1):
        answer = json.loads(line)
        if "error" in answer:
            raise MoetrafficError(answer["error"])
        at, seed = divmod(number, seeds)
        losses[at, seed] = answer["loss"]
        if on_run is not None:
            told = {"share": shares[at], "seed": plans[number].training.seed}
            on_run(count, {**told, **answer})
    return losses
