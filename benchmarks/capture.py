"""What recording costs, beside torch's own ways of seeing the same all-to-alls.

All ways take turns in one run, so that whatever else the machine does meets all of
them.  A block is a step: 64 all-to-alls, then a pause in which a training would
compute.  A round of a way is settled before it is measured: what starts once in a run
is no cost of a call.

A processor's speed may change by half within a second, which is hundreds of times what
the hook costs.  So calls under a hook are paired with bare ones: 8 calls with it and 8
that pass it by (its dispatch key is excluded for them) take turns within a block, and
the median of the pairs' differences is reported.  What the recorder's own threads
spend between the calls is told beside it, as processor time a call.  The profiler and
the observer cannot be passed by: of them the rounds' differences are told.

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
from collections import Counter
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
from moetraffic.capture.hook import native
from moetraffic.capture.recording import WINDOW_STEPS

CALLS, ROUNDS, PAUSE_S, ROWS = 64, 8, 0.03, 16
BLOCKS, SETTLED_S = 5, 1.5
WAIT = dist.Work.wait  # as torch has it
UNPAUSED = 100_000  # calls times ranks
SLICE, PAIRED_BLOCKS, GLOO_BLOCKS = 8, 40, 80
LIMITS = {4: 8.0, 128: 15.0}  # us added to a collective


class Calls:
    """All-to-alls with uneven splits, as rows are routed."""

    def __init__(self, width: int) -> None:
        drawn = np.random.default_rng(1).multinomial(width * ROWS, [1 / width] * width)
        self.sent = drawn.tolist()
        self.received = [ROWS] * width
        self.rows = torch.ones(width * ROWS, 16)
        self.output = torch.empty(width * ROWS, 16)

    def block(self, calls: int = CALLS) -> float:
        """Microseconds an all-to-all, as the training thread sees them."""
        begin = time.perf_counter()
        for _ in range(calls):
            dist.all_to_all_single(self.output, self.rows, self.received, self.sent)
        return (time.perf_counter() - begin) / calls * 1e6

    def passed_by(self, calls: int) -> float:
        """Likewise, while no kernel of a hook is entered, nor its way of waiting."""
        hooks = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
        watched = dist.Work.wait
        dist.Work.wait = WAIT
        try:
            with torch._C._ExcludeDispatchKeyGuard(hooks):
                return self.block(calls)
        finally:
            dist.Work.wait = watched


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
HOOKS = ("passing", "recorder", "in Python")


def compare(width: int, folder: Path) -> dict[str, list[float]]:
    """Microseconds of an all-to-all bare, profiled and observed, ``[rounds]`` each."""
    calls = Calls(width)
    ways = {name: way for name, way in WAYS.items() if name not in HOOKS}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            with way(folder / f"{name}-{number}.json"):
                calls.block()  # what is done once a group, or once a way
                spent = []
                for _ in range(BLOCKS):
                    time.sleep(PAUSE_S)
                    spent.append(calls.block())
            if number:
                times[name].append(float(np.median(spent)))
    return times


def paired(width: int, folder: Path) -> dict[str, tuple[list[float], float]]:
    """What each hook adds to a call.

    Returns
    -------
    dict
        Of each hook the differences of its pairs, us, and the processor time that
        other threads of this process spent a call, us.
    """
    calls = Calls(width)
    found: dict[str, tuple[list[float], float]] = {}
    differences: dict[str, list[float]] = {name: [] for name in HOOKS}
    elsewhere = dict.fromkeys(HOOKS, 0.0)
    for number in range(ROUNDS):
        for name in HOOKS:
            with WAYS[name](folder / f"paired-{name}-{number}") as step:
                calls.block()
                step()
                time.sleep(SETTLED_S)
                before = time.process_time() - time.thread_time()
                for at in range(PAIRED_BLOCKS):
                    differences[name] += pairs_of_a_block(calls, first=at % 2)
                    step()
                    time.sleep(PAUSE_S)
                elsewhere[name] += time.process_time() - time.thread_time() - before
    for name, spent in differences.items():
        hooked = ROUNDS * PAIRED_BLOCKS * CALLS / 2
        found[name] = spent, elsewhere[name] / hooked * 1e6
    return found


def pairs_of_a_block(calls: Calls, first: int) -> list[float]:
    """Microseconds a call with the hook less those without, of each pair of slices."""
    calls.block(SLICE)  # awake after the pause
    ways = (calls.passed_by, calls.block)
    spent = [ways[(n + first) % 2](SLICE) for n in range(CALLS // SLICE)]
    hooked, bare = spent[1 - first :: 2], spent[first::2]
    return [a - b for a, b in zip(hooked, bare, strict=True)]


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


def noting(width: int, folder: Path) -> dict[str, float]:
    """Microseconds that recording takes of single calls while segments are committed.

    Two steps are a window.  Blocks with and without the recorder take turns.

    Returns
    -------
    dict
        ``own``, ``own_p99``: what the hook took itself, by its own clock.  ``median``:
        the difference of the calls' medians.  ``p99``, ``bare_p99``: the 99th
        percentile less the bare median, of recorded calls and of bare ones.
    """
    calls = Calls(width)
    group = dist.group.WORLD
    assert group is not None
    spent: dict[bool, list[float]] = {False: [], True: []}
    own: Counter[int] = Counter()
    hook = native.load()
    assert hook is not None

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
            own.update(dict(hook.spent()))
    bare = float(np.median(spent[False]))
    last = {on: float(np.percentile(spent[on], 99)) - bare for on in spent}
    below = np.repeat(sorted(own), [own[ns] for ns in sorted(own)]) / 1e3
    return {
        "own": float(np.median(below)),
        "own_p99": float(np.percentile(below, 99)),
        "median": float(np.median(spent[True])) - bare,
        "p99": last[True],
        "bare_p99": last[False],
    }


def handing_on(width: int, folder: Path) -> float:
    """Processor time of the recorder's threads, us a call, where calls never pause."""
    calls, spent = Calls(width), []
    number = max(1000, UNPAUSED // width)
    with recorded(folder / "handing-on.h5") as step:
        calls.block()
        step()
        time.sleep(SETTLED_S)
        for _ in range(ROUNDS):
            before = time.process_time() - time.thread_time()
            calls.block(number)
            after = time.process_time() - time.thread_time()
            spent.append((after - before) / number * 1e6)
            step()
            time.sleep(10 * PAUSE_S)
    return float(np.median(spent))


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
        found: dict[str, Any] = {"times": compare(width, folder)}
        found["paired"] = paired(width, folder)
        found["noting"] = noting(width, folder)
        found["handing_on"] = handing_on(width, folder)
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
    differences: list[float] = []
    bare_us: list[float] = []
    with recorded(Path(folder, "recorder.h5")) as step:
        calls.block()
        step()
        time.sleep(SETTLED_S)
        for at in range(GLOO_BLOCKS):
            dist.barrier()
            bare_us.append(calls.passed_by(SLICE))
            differences += pairs_of_a_block(calls, first=at % 2)
            step()
            time.sleep(PAUSE_S)
        dist.barrier()
    dist.destroy_process_group()
    if number == 0:
        found = {"bare": bare_us, "added": differences}
        Path(folder, "times.json").write_text(json.dumps(found))


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
        cost = {way: float(np.median(found["paired"][way][0])) for way in HOOKS}
        cost |= {way: added(times, way) for way in times if way != "bare"}
        print(f"{width} ranks, fake group: {np.median(times['bare']):.1f} us bare")
        for way, spent in cost.items():
            ratio = spent / cost["recorder"]
            added_by = f"{way:9} adds {spent:7.1f} us"
            print(f"  {added_by} ({ratio:.1f} x the recorder)", end="")
            pairs, elsewhere = found["paired"].get(way, ([], 0.0))
            if pairs:
                low, high = np.percentile(pairs, (25, 75))
                print(f", quartiles {low:.1f} to {high:.1f}; ", end="")
                print(f"other threads {elsewhere:.1f} us", end="")
            print()
        call = found["noting"]
        print("  while segments are committed the hook itself takes less than ", end="")
        print(f"{call['own']:.2f} us of a call, p99 {call['own_p99']:.2f}; ", end="")
        print(f"the call {call['median']:+.2f} us, p99 {call['p99']:.1f} ", end="")
        print(f"above the bare median (bare calls: {call['bare_p99']:.1f})")
        unpaused = found["handing_on"]
        print(f"  while calls never pause, other threads take {unpaused:.1f} us a call")
        print(f"  another operator: {found['others']:.3f} x")
        longer = found["longer"]
        share = longer["recorder"] / longer["observer"]
        print(f"  bytes on disk: {share:.4f} of the execution trace's")
        kept &= cost["recorder"] <= limit
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(gloo_rank, (folder,), nprocs=4)
        times = json.loads(Path(folder, "times.json").read_text())
    low, middle, high = np.percentile(times["added"], (25, 50, 75))
    print(f"4 ranks, gloo: {np.median(times['bare']):.0f} us bare, ", end="")
    print(f"{middle:.1f} us added, quartiles {low:.1f} to {high:.1f}")
    print("within" if kept else "over", "the limits of", LIMITS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
