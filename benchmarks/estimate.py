"""CPU time to estimate many configurations in one call, and one at a time.

Terms, bytes, memory and rules of each; half of them cannot exist, as in a search.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from page import save

from moetraffic.patterns import Layout, preset
from moetraffic.timemodel import (
    A100,
    NodeLinks,
    System,
    estimate,
    search,
)

MODEL = preset("mixtral-8x7b").model
LINKS = NodeLinks(gpus=8, inside_bytes_s=300e9, nic_bytes_s=200e9)
SYSTEM = System.of_gpu(A100, LINKS, overlap={"dp": 0.8})
SYSTEMS = {"": SYSTEM, "_fixed_utilization": replace(SYSTEM, gpu=None, utilization=0.5)}
"""The default, a roofline, and a utilization in its place, by the end of keys."""


def measure(number: int) -> dict[str, float]:
    found: dict[str, float] = {
        "cores": len(os.sched_getaffinity(0)),
        "configurations": number,
    }
    for end, system in SYSTEMS.items():
        found |= {f"{name}{end}": v for name, v in measured(number, system).items()}
    return found


def measured(number: int, system: System) -> dict[str, float]:
    drawn = np.random.default_rng(0)

    def powers(least: int, most: int) -> np.ndarray:
        return 2.0 ** drawn.integers(least, most, number)

    began = time.thread_time()
    config = Layout(
        model=MODEL,
        k=2,
        pp=powers(0, 6),
        tp=powers(0, 4),
        dp=powers(0, 7),
        ep=powers(0, 4),
        virtual=powers(0, 3),
        micro_batch=powers(0, 4),
        global_batch=1024,
        zero=drawn.integers(0, 4, number),
        recompute=drawn.integers(0, 3, number),
        sequence_parallel=drawn.integers(0, 2, number),
    )
    found = estimate(config, system, strict=False)
    once = time.thread_time() - began
    single: list[float] = []
    for _ in range(200):
        started = time.thread_time()
        config = Layout(model=MODEL, k=2, pp=4, dp=8, ep=8, global_batch=256)
        estimate(config, system)
        single.append(1e3 * (time.thread_time() - started))
    began = time.thread_time()
    looked = search(MODEL, system, gpus=1024, global_batch=4096, k=2)
    return {
        "cpu_seconds": round(once, 3),
        "one_configuration_cpu_ms": round(float(np.median(single)), 3),
        "can_exist": int(found.sound.sum()),
        "fit": int(found.fits.sum()),
        "best_of_1024_gpus_tried": looked.tried,
        "best_of_1024_gpus_cpu_seconds": round(time.thread_time() - began, 3),
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--configurations", type=int, default=100_000)
    asked.add_argument("--json", type=Path, help="write the results to this file")
    told = asked.parse_args()
    save(told.json, measure(told.configurations))


if __name__ == "__main__":
    main()
