"""Run everything that one GPU can show, and write a page about it.

- the tests marked ``gpu``: NCCL, events, gaps, capture and routers on CUDA;
- captures of a model preset in bfloat16 with 8 and 16 virtual expert-parallel ranks,
  50 iterations each, with the heatmaps of their reports;
- the overhead of recording an all-to-all of NCCL;
- times that a replay reports, compared with those of torch's profiler;
- rates of kernels, for the time model;
- replays on one rank by NCCL: as soon as possible, at captured pace, and in open loop;
  a single GPU has no network, so these show that the plan runs, and what the times of
  the events are.

Without a CUDA device nothing is run, and one sentence says so.

Run ``make test-gpu`` or ``python benchmarks/gpu.py --out build/gpu``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from page import save

Step = tuple[str, list[str]]


def steps(out: Path, model: str, iterations: int) -> Iterator[Step]:
    """Yield a title and a command for each part."""
    python, program = [sys.executable, "-m"], [sys.executable, "-m", "moetraffic"]
    yield (
        "tests on the device",
        [*python, "pytest", "-q", "-n", "0", "-m", "gpu and not slow"],
    )
    here = Path(__file__).parent
    times = [sys.executable, str(here / "gpu_times.py")]
    named = ["--json", str(out / "times.json")]
    yield "reported times and an independent clock", [*times, *named]
    times += ["--backends", "kernels", "--kernel-us", "500", "4000"]
    times += ["--paces", "asap", "captured"]
    times += ["--operations", "400", "--json", str(out / "long.json")]
    yield "the same with longer operations", times
    overhead = [sys.executable, str(here / "capture.py"), "--device", "cuda"]
    overhead += ["--ranks", "1", "--ways", "compiled", "python", "none"]
    overhead += ["--rounds", "9", "--json", str(out / "overhead.json")]
    yield "overhead of recording", overhead
    kernels = [sys.executable, str(here / "gpu_kernels.py")]
    yield "kernels", [*kernels, "--csv", str(out / "kernels.csv")]
    for ranks in (8, 16):
        trace = str(out / f"ep{ranks}.h5")
        capture = ["capture", "--virtual", "--ep", str(ranks), "--model", model]
        capture += ["--iterations", str(iterations), "--device", "cuda"]
        capture += ["--precision", "bfloat16", "--force", "-o", trace]
        yield f"capture of {model}, {ranks} virtual ranks", [*program, *capture]
        page = str(out / f"ep{ranks}.html")
        yield (
            f"report with heatmaps, {ranks} ranks",
            [*program, "report", trace, "-o", page, "--force"],
        )
    replay = [*program, "replay", str(out / "ep8.h5"), "--fold", "1"]
    replay += ["--backend", "nccl"]
    first = ["--iterations", ":3"]  # a core checks about a gigabyte a second
    yield "replay with every byte checked", [*replay, *first]
    replay += ["--verify", "none"]
    yield "replay asap", [*replay, "--repeat", "5"]
    # a capture in one process has no times: those of a replay are its pace
    timed = str(out / "timed.h5")
    yield "replay that records times", [*replay, "-o", timed, "--force"]
    again = [*program, "replay", timed, "--backend", "nccl", "--verify", "none"]
    yield "replay at captured pace", [*again, "--pace", "captured"]
    yield "replay in open loop", [*again, "--pace", "open-loop"]


def run(command: list[str], limit_s: float) -> tuple[int, str]:
    """Run a part; return its exit code and what it printed, errors if it failed.

    A part that takes longer than the limit ends with the stacks of its threads.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},
    )
    late = ""
    try:
        said, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        said, errors = process.communicate()
        late = f"\nstopped after {limit_s:g} s"
    if process.returncode:
        said += errors
    return process.returncode, said.strip() + late


def main() -> int:
    """Run all steps; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--model", default="gpt-moe-760m")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--limit", type=float, default=600, help="s, of each part")
    parser.add_argument("--skip", nargs="+", default=[], help="words of titles")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            f"no CUDA device for torch {torch.__version__}: run make test-gpu where "
            "nvidia-smi lists one, with a torch built for CUDA"
        )
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_properties(0)
    lines = [
        "# What one GPU shows",
        "",
        f"{device.name}, {device.total_memory / 1e9:.0f} GB, "
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"NCCL {torch.cuda.nccl.version()}.",
    ]
    rows = []
    for title, command in steps(options.out, options.model, options.iterations):
        if any(word in title for word in options.skip):
            continue
        begin = time.monotonic()
        code, said = run(command, options.limit)
        took_s = time.monotonic() - begin
        shown = " ".join(["moetraffic", *command[3:]])
        if "moetraffic" not in command:
            shown = " ".join(["python", *command[1:]])
        lines += ["", f"## {title.capitalize()}", "", f"`{shown}`", ""]
        lines += [f"Exit code {code} after {took_s:.1f} s.", ""]
        lines += ["```text", said, "```"]
        rows.append({"part": title, "code": code, "s": took_s, "output": said})
        print(f"{title}: exit code {code} after {took_s:.1f} s", flush=True)
        (options.out / "gpu.md").write_text("\n".join(lines) + "\n")
        if options.json:
            save(options.json, rows)
    failed = sum(row["code"] != 0 for row in rows)
    print(f"page: {options.out / 'gpu.md'}; {failed} parts failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
