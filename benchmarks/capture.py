"""What recording costs: the same all-to-alls with and without a recorder, in one run.

Blocks with and without alternate, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from moetraffic import Recorder

RANKS, BLOCKS, CALLS, WARM_UP = 2, 40, 250, 2


def block(steps: Recorder | None) -> float:
    """Microseconds an all-to-all of 4 KB, as this rank sees them."""
    rows, output = torch.ones(64, 16), torch.empty(64, 16)
    half = [32, 32]
    begin = time.perf_counter()
    for call in range(CALLS):
        dist.all_to_all_single(output, rows, half, half)
        if steps is not None and call % 50 == 49:
            steps.step()
    return (time.perf_counter() - begin) / CALLS * 1e6


def other_operators() -> float:
    """Microseconds of an operator that is no collective."""
    small = torch.ones(8)
    begin = time.perf_counter()
    for _ in range(20_000):
        small.add_(1.0)
    return (time.perf_counter() - begin) / 20_000 * 1e6


def rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", RANKS),
        rank=number,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    times: dict[str, list[float]] = {"bare": [], "recorded": [], "off": [], "on": []}
    for at in range(BLOCKS + WARM_UP):
        dist.barrier()
        bare, off = block(None), other_operators()
        recorder = Recorder(f"{folder}/run{at}.h5").start()
        dist.barrier()
        recorded, on = block(recorder), other_operators()
        recorder.close(merged=False)
        if at >= WARM_UP:
            for name, value in zip(times, (bare, recorded, off, on), strict=True):
                times[name].append(value)
    dist.destroy_process_group()
    if number == 0:
        Path(folder, "times.json").write_text(json.dumps(times))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(rank, (folder,), nprocs=RANKS)
        times = json.loads(Path(folder, "times.json").read_text())
    bare, recorded, off, on = (np.array(times[n]) for n in times)
    print(f"all-to-all of 4 KB, {RANKS} ranks, gloo: {np.median(bare):.1f} us")
    print(f"  added by the recorder: {np.median(recorded - bare):.1f} us")
    print(f"  ratio recorded / bare: {np.median(recorded / bare):.3f}")
    print(f"another operator: ratio {np.median(on / off):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
