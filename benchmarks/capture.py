"""What recording costs, beside torch's own ways of seeing the same all-to-alls.

All ways take turns in one run, so that whatever else the machine does meets all of
them; medians of the rounds' differences are reported.  A block is a step: 64
all-to-alls, then a pause in which a training would compute.  A round of a way is
settled before it is measured: what starts once in a run is no cost of a call.

*recorder* has the compiled hook, *in Python* the other one.  *passing* is a kernel in
Python that does nothing but pass the call on: what torch itself takes to enter Python
and to leave it again, below which no hook in Python can be.

- *fake group*: torch's group without a network, so that only the cost of seeing is
  measured, with 4 and with 128 ranks.
- *gloo*: 4 real ranks on this machine, 4 KB from each.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from moetraffic import Recorder
from moetraffic.capture import native
from moetraffic.capture.recorder import WINDOW_STEPS

CALLS, ROUNDS, PAUSE_S, ROWS = 64, 8, 0.03, 16
BLOCKS, SETTLED_S = 5, 1.5
LIMITS = {4: 8.0, 128: 15.0}  # us added to a collective


class Calls:
    """All-to-alls with uneven splits, as rows are routed."""

    def __init__(self, width: int) -> None:
        drawn = np.random.default_rng(1).multinomial(width * ROWS, [1 / width] * width)
        self.sent = drawn.tolist()
        self.received = [ROWS] * width
        self.rows = torch.ones(width * ROWS, 16)
        self.output = torch.empty(width * ROWS, 16)

    def block(self) -> float:
        """Microseconds an all-to-all, as the training thread sees them."""
        begin = time.perf_counter()
        for _ in range(CALLS):
            dist.all_to_all_single(self.output, self.rows, self.received, self.sent)
        return (time.perf_counter() - begin) / CALLS * 1e6


@contextmanager
def recorded(path: Path, window: int = WINDOW_STEPS) -> Iterator[Callable[[], None]]:
    recorder = Recorder(path, window=window).start()
    yield recorder.step
    recorder.close(merged=False)


@contextmanager
def in_python(path: Path) -> Iterator[Callable[[], None]]:
    os.environ[native.VARIABLE] = "python"
    try:
        with recorded(path) as step:
            yield step
    finally:
        os.environ[native.VARIABLE] = "native"


@contextmanager
def profiled(path: Path) -> Iterator[Callable[[], None]]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        yield lambda: None
    profiler.export_chrome_trace(str(path))


@contextmanager
def observed(path: Path) -> Iterator[Callable[[], None]]:
    observer = ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    yield lambda: None
    observer.stop()
    observer.unregister_callback()


@contextmanager
def bare(path: Path) -> Iterator[Callable[[], None]]:
    yield lambda: None


@contextmanager
def passed_on(path: Path) -> Iterator[Callable[[], None]]:
    library = torch.library.Library("c10d", "IMPL")
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    further = torch.ops.c10d.alltoall_base_.default._handle.redispatch_boxed
    library.impl(
        "alltoall_base_",
        lambda keys, *given: further(keys & after, *given),
        "BackendSelect",
        with_keyset=True,
    )
    yield lambda: None
    library._destroy()


WAYS = {
    "bare": bare,
    "passing": passed_on,
    "recorder": recorded,
    "in Python": in_python,
    "profiler": profiled,
    "observer": observed,
}


def compare(width: int, folder: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Microseconds of an all-to-all under every way, ``[rounds]`` each, and bytes."""
    calls = Calls(width)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    sizes: dict[str, int] = dict.fromkeys(WAYS, 0)
    for number in range(rounds + 1):
        for name, way in WAYS.items():
            path = folder / f"{name}-{number}.json"
            with way(path) as step:
                calls.block()  # what is done once a group, or once a way
                step()
                time.sleep(SETTLED_S if way in (recorded, in_python) else PAUSE_S)
                spent = []
                for _ in range(BLOCKS):
                    spent.append(calls.block())
                    step()
                    time.sleep(PAUSE_S)
            if number:
                times[name].append(float(np.median(spent)))
                sizes[name] += sum(
                    f.stat().st_size
                    for f in folder.glob(
                        f"{path.name}*/**/*.h5"
                        if way in (recorded, in_python)
                        else path.name
                    )
                    if f.is_file()
                )
    return {"times": times, "sizes": sizes}


def longer_run(width: int, folder: Path, steps: int = 100) -> dict[str, int]:
    """Bytes on the disk of a run of some length, by recorder and by observer."""
    calls, sizes = Calls(width), {}
    for name in ("recorder", "observer"):
        with WAYS[name](folder / name) as step:
            for _ in range(steps):
                calls.block()
                step()
        sizes[name] = (
            sum(f.stat().st_size for f in folder.glob(f"{name}*/**/*.h5"))
            or (folder / name).stat().st_size
        )
    return sizes


def noting(width: int, folder: Path) -> tuple[float, float]:
    """Microseconds that recording adds to single calls while segments are committed.

    Two steps are a window.  Blocks with and without the recorder take turns.

    Returns
    -------
    tuple of float
        The difference of the medians, and the 99th percentile less the bare median.
    """
    calls = Calls(width)
    group = dist.group.WORLD
    assert group is not None
    spent: dict[bool, list[float]] = {False: [], True: []}

    def block(recorded: bool) -> None:
        for _ in range(CALLS):
            begin = time.perf_counter_ns()
            dist.all_to_all_single(calls.output, calls.rows, calls.received, calls.sent)
            spent[recorded].append((time.perf_counter_ns() - begin) / 1e3)

    for number in range(10):
        for _ in range(20):
            block(False)
            time.sleep(0.005)
        with recorded(folder / f"noting-{number}.h5", window=2) as step:
            for _ in range(20):
                block(True)
                step()
                time.sleep(0.005)
    bare = float(np.median(spent[False]))
    on = np.array(spent[True])
    return float(np.median(on)) - bare, float(np.percentile(on, 99)) - bare


def other_operators(folder: Path) -> float:
    """Time of an operator that is no collective, recorded over bare."""
    small, ratios = torch.ones(8), []

    def spent() -> float:
        begin = time.perf_counter()
        for _ in range(5000):
            small.add_(1.0)
        return time.perf_counter() - begin

    for number in range(20):
        off = spent()
        recorder = Recorder(folder / f"other-{number}.h5").start()
        on = spent()
        recorder.close(merged=False)
        ratios.append(on / off)
    return float(np.median(ratios))


def on_fake_group(width: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=width)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = compare(width, folder)
        spent = noting(width, folder)
        found["noting"] = spent
        found["others"] = other_operators(folder)
        found["longer"] = longer_run(width, folder)
    dist.destroy_process_group()
    return found


def fake_rank(_: int, width: int, file: str) -> None:
    Path(file).write_text(json.dumps(on_fake_group(width)))


def gloo_rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", 4),
        rank=number,
        world_size=4,
        timeout=timedelta(seconds=120),
    )
    calls = Calls(4)
    calls.sent = calls.received
    times: dict[str, list[float]] = {"bare": [], "recorder": []}
    for at in range(ROUNDS):
        for name in times:
            with WAYS[name](Path(folder, f"{name}-{at}.h5")) as step:
                dist.barrier()
                calls.block()
                dist.barrier()
                times[name].append(calls.block())
                step()
    dist.barrier()
    dist.destroy_process_group()
    if number == 0:
        Path(folder, "times.json").write_text(json.dumps(times))


def added(times: dict[str, list[float]], way: str) -> float:
    """Microseconds that a way adds to a collective: the median over the rounds."""
    return float(np.median(np.array(times[way]) - np.array(times["bare"])))


def main() -> int:
    native.build()
    os.environ[native.VARIABLE] = "native"
    kept = True
    for width, limit in LIMITS.items():
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(fake_rank, (width, f"{folder}/found.json"), nprocs=1)
            found = json.loads(Path(folder, "found.json").read_text())
        times = found["times"]
        cost = {way: added(times, way) for way in WAYS if way != "bare"}
        print(f"{width} ranks, fake group: {np.median(times['bare']):.1f} us bare")
        for way, spent in cost.items():
            ratio = spent / cost["recorder"]
            print(f"  {way:9} adds {spent:7.1f} us ({ratio:.1f} x the recorder)")
        median, p99 = found["noting"]
        print(f"  a call while segments are committed: {median:+.2f} us, ", end="")
        print(f"p99 {p99:.1f} us above the bare median")
        print(f"  another operator: {found['others']:.3f} x")
        longer = found["longer"]
        share = longer["recorder"] / longer["observer"]
        print(f"  bytes on disk: {share:.4f} of the execution trace's")
        kept &= cost["recorder"] <= limit
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(gloo_rank, (folder,), nprocs=4)
        times = json.loads(Path(folder, "times.json").read_text())
    ratio = np.median(np.array(times["recorder"]) / np.array(times["bare"]))
    print(f"4 ranks, gloo: {np.median(times['bare']):.0f} us bare, ", end="")
    print(f"{added(times, 'recorder'):.1f} us added, ratio {ratio:.3f}")
    print("within" if kept else "over", "the limits of", LIMITS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
