"""Times that a replay on a CUDA device reports, compared with an independent clock.

Rank 0 of 1 replays exchanges with gaps of 0.5 to 3 ms, under torch's profiler, whose
times of kernels come from CUPTI and not from events.  Two backends: kernels that poll
the device's clock for a drawn time (``--kernel-us``), on a stream of their own as a
communicator's; and NCCL, which copies within the GPU's memory as there is no other
rank.  For each pace:

- *wall*: from the first issue to the last end, relative to the kernels';
- *calls*: the sum of the calls' times, relative to the kernels', and how much longer a
  call is than its kernel (median, us);
- *gap*: time between kernels less the captured gap, us: median, largest, and how it
  changes from the first to the last quarter of the pass; in open loop, the lateness of
  the kernels;
- *clock*: drift of the reported times against the kernels', parts in a million.

Run ``python benchmarks/gpu_times.py --json times.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exchanges import exchanges
from page import save
from torch.profiler import ProfilerActivity, profile

from moetraffic.launch.environment import RankEnvironment
from moetraffic.replay.options import Options
from moetraffic.replay.pace import parse_pace
from moetraffic.replay.plan.operations import Plan, operations
from moetraffic.replay.plan.program import Program, program
from moetraffic.replay.run import timed_pass
from moetraffic.replay.transport import Bound, Transport

CYCLES_PER_US = 1900  # about: what a kernel took is measured
PACES = ("asap", "captured", "open-loop")
LIMIT = 0.01


class Work:
    """Handle of a kernel, as torch's of an operation of NCCL."""

    def __init__(self, end: torch.cuda.Event) -> None:
        self._end = end

    def wait(self) -> None:
        torch.cuda.current_stream().wait_event(self._end)


class Kernels(Transport):
    """Transport whose operations are kernels of a drawn duration on one stream."""

    def __init__(self, seed: int, shortest_us: float, longest_us: float) -> None:
        super().__init__("nccl")
        self._range = np.log([shortest_us, longest_us])
        self._random = np.random.default_rng(seed)
        self._stream = torch.cuda.Stream()
        self.drawn: list[int] = []  # cycles of each operation, in the order of binding

    def bind(self, *_: Any, **more: Any) -> Callable[[], Work]:
        """Bind an operation to a kernel that polls the device's clock."""
        cycles = int(np.exp(self._random.uniform(*self._range)) * CYCLES_PER_US)
        self.drawn.append(cycles)

        def launch() -> Work:
            ready, end = torch.cuda.Event(), torch.cuda.Event()
            ready.record()
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(ready)
                torch.cuda._sleep(cycles)
                end.record()
            return Work(end)

        return launch


def kernels(path: Path, wanted: tuple[str, ...], drawn: np.ndarray) -> np.ndarray:
    """Begin and end of the operations' kernels in a profile, ``[2, N]`` ns.

    They are the last N of a stream that have one of the wanted names; of several such
    streams (gaps spin too) the one whose times are most like those drawn.
    """
    found: dict[int, list[tuple[float, float]]] = {}
    seen: Counter[Any] = Counter()
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") not in ("kernel", "gpu_memcpy"):
            continue
        name, stream = event["name"], event["args"]["stream"]
        seen[name[:60], stream] += 1
        if any(part in name.lower() for part in wanted):
            found.setdefault(stream, []).append((event["ts"], event["dur"]))
    times = [np.array(sorted(r)).T * 1e3 for r in found.values()]
    times = [t[:, -len(drawn) :] for t in times if t.shape[1] >= len(drawn)]
    if not times:
        raise SystemExit(f"no stream has {len(drawn)} operations: {seen.most_common()}")
    begin, took = max(times, key=lambda one: np.corrcoef(one[1], drawn)[0, 1])
    return np.stack([begin, begin + took])


def compared(
    own: Program, timing: Any, truth: np.ndarray, pace: str
) -> dict[str, float]:
    """Compare reported times with those of the kernels, in the order of the program."""
    begin, end = truth
    calls, took = (timing.end - timing.issue).astype(float), end - begin
    quarter = len(begin) // 4
    row = {
        "operations": len(begin),
        "wall_ms": (end[-1] - begin[0]) / 1e6,
        "wall": np.ptp([timing.issue.min(), timing.end.max()]) / (end[-1] - begin[0])
        - 1,
        "calls": calls.sum() / took.sum() - 1,
        "kernel_us": float(np.median(took)) / 1e3,
        "call_longer_us": float(np.median(calls - took)) / 1e3,
    }
    shift = timing.issue - timing.issue[0] - (begin - begin[0])
    change = np.median(shift[-quarter:]) - np.median(shift[:quarter])
    row["clock_ppm"] = float(change / (0.75 * np.ptp(begin))) * 1e6
    if "captured" in pace:
        asked = own.gap_ns[1:].astype(float)
        late = (begin[1:] - end[:-1] - asked) / 1e3
        row["gaps"] = (late * 1e3).sum() / asked.sum()
    elif pace == "open loop":
        # the first is as late as it is reported to be
        late = (begin - begin[0] - (timing.due - timing.issue[0])) / 1e3
    else:
        return row
    row["late_us"] = float(np.median(late))
    row["late_worst_us"] = float(np.abs(late).max())
    row["late_change_us"] = float(
        np.median(late[-quarter:]) - np.median(late[:quarter])
    )
    return row


def measured(
    plan: Plan, own: Program, moves: Transport, wanted: tuple[str, ...], name: str
) -> dict[str, float]:
    """Replay once under the profiler, and compare."""
    options = Options(trace=Path(), pace=parse_pace(name))
    bound = Bound(plan, own, moves)
    bound.warm_up()
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            timing = timed_pass(options, bound)
            torch.cuda.synchronize()
        path = Path(folder, "profile.json")
        seen.export_chrome_trace(str(path))
        drawn = getattr(moves, "drawn", own.send_size)
        truth = kernels(path, wanted, np.array(drawn[-len(own) :]))
    return compared(own, timing, truth, name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--operations", type=int, default=1000)
    parser.add_argument(
        "--megabytes", type=int, default=200, help="mean of an exchange"
    )
    parser.add_argument("--kernel-us", type=float, nargs=2, default=[20, 400])
    parser.add_argument("--paces", nargs="+", choices=PACES, default=list(PACES))
    parser.add_argument("--backends", nargs="+", default=["kernels", "nccl"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    given = parser.parse_args()
    rows, code = [], 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MOETRAFFIC_FILESTORE": f"{folder}/store"}
        trace = exchanges(
            1,
            given.operations,
            bytes_a_rank=given.megabytes * 10**6,
            dense=False,
            seed=given.seed,
        )
        plan = operations(trace)
        own = program(trace, plan, 0)
        of: dict[str, tuple[Transport, tuple[str, ...]]] = {
            "kernels": (Kernels(given.seed, *given.kernel_us), ("spin",)),
            "nccl": (Transport("nccl"), ("nccl", "memcpy dtod")),
        }
        for backend in given.backends:
            moves, wanted = of[backend]
            moves.start(RankEnvironment(0, 1, 0), plan.used_groups, 60.0)
            try:
                for name in given.paces:
                    row = measured(plan, own, moves, wanted, name)
                    rows.append({"backend": backend, "pace": name, **row})
                    shown = ", ".join(f"{k} {v:.4g}" for k, v in row.items())
                    print(f"{backend}, {name}: {shown}", flush=True)
                    if abs(row["wall"]) > LIMIT:
                        print(f"  the wall clock is off by more than {LIMIT:.0%}")
                        code = 1
            finally:  # or else the process would not end
                moves.stop()
    if given.json:
        save(given.json, rows)
    return code


if __name__ == "__main__":
    sys.exit(main())
