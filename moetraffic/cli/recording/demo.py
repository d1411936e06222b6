"""``moetraffic demo``: train, capture, analyze and replay in one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from moetraffic.cli.output import json_text, make_folder, present, progress
from moetraffic.errors import LayoutError, ReplayError
from moetraffic.launch.machine_resources import check_rank_count, check_workload
from moetraffic.launch.training import capture_run
from moetraffic.patterns import Gating, ModelShape, Parallelism, Training, Workload
from moetraffic.report.console.options import AsJson, Force, option
from moetraffic.report.console.terminal import Paper, announce, say
from moetraffic.report.results.overview import overview, sentence, tables
from moetraffic.trace import Trace

from .capture import OVERWRITE

EXPERTS = 8
WRITES = ("run.h5", "replayed.h5", "report.html", "summary.txt", "summary.json")
REPLAYED = 20
"""Number of iterations that are replayed: the last ones."""

WINDOW = 20
"""Number of iterations at the begin and the end of which the load is compared."""


def demo(
    output: Path = option(Path("demo"), "Folder to write.", "-o", "--output"),
    nproc: int = option(4, "Number of ranks."),
    iterations: int = option(160, "Number of training iterations."),
    corpus: str | None = option(
        None,
        "Text to train on: a file, folder or glob; random: random tokens.",
        shown="Python's standard library",
    ),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a MoE GPT on real text, capture it, analyze it and replay it.

    Writes run.h5, replayed.h5, report.html, summary.txt, summary.json and pictures.

    Example: moetraffic demo -o demo
    """
    _refuse_ranks(nproc)
    workload = Workload(
        model=ModelShape(layers=4, hidden=128, experts=EXPERTS, moe_every=2),
        gating=Gating(router="topk", k=2, dispatch="dropless"),
        layout=Parallelism(dp=nproc, ep=nproc),
        training=Training(iterations=iterations, corpus=corpus or ""),
    )
    check_workload(workload, ranks=nproc)
    make_folder(output, WRITES, force=force)
    run, replayed, page = (output / name for name in WRITES[:3])
    _stage(f"1/3 train on {nproc} ranks and capture every collective", as_json)
    with progress("training", iterations, quiet=as_json) as step:
        trace = capture_run(
            *(workload, run),
            force=force,
            on_step=step,
            say=announce,
            overwrite=OVERWRITE,
        )
    assert trace is not None  # this process is no rank
    from moetraffic.analysis import analyze
    from moetraffic.report.page import write_report
    from moetraffic.report.plain_data import as_dict
    from moetraffic.report.results import pictures, summary
    from moetraffic.report.summary.answer import conclusions

    with trace:
        held = overview(trace, run)
    last = min(iterations, REPLAYED)
    _stage(
        f"2/3 replay the collectives of the last {last} iterations and verify every "
        "byte",
        as_json,
    )
    replay = _replay(run, replayed, nproc, f"{iterations - last}:{iterations}")
    _stage("3/3 analyze the run and draw the report", as_json)
    with Trace.open(run) as trace, Trace.open(replayed) as again:
        found = analyze(trace)
        drawn = pictures.draw(trace, found, output)
        write_report(trace, page, replay=again, force=True)
        told = {
            "capture": held,
            "analysis": as_dict(found, file=str(run)),
            "replay": replay,
            "pictures": [path.name for path in drawn],
        }
        lines = conclusions(found)
        lines += [_course(trace), summary.replay_sentence(replay)]
        (output / "summary.json").write_text(json_text(told) + "\n")
        with (output / "summary.txt").open("w") as file:
            paper = Paper(file=file, width=120)
            shown = [*lines, "", sentence(trace, run), *tables(trace, run)]
            paper.show([*shown, *summary.tables(found)])
    present(told, "", *lines, "", *_next(output), as_json=as_json)


def _course(trace: Trace) -> str:
    """State how even the load over experts is at the begin and the end of a run."""
    from moetraffic.analysis.skew.measures import normalized_entropy

    keys = ["layer", "iteration", "expert"]
    tokens = trace.demand_frame().groupby(keys)["tokens"].sum().unstack("expert")
    layers = tokens.groupby("layer")
    size = max(1, min(WINDOW, len(trace.iterations) // 2))
    ends = []
    for part in (layers.head(size), layers.tail(size)):
        even = normalized_entropy(part.to_numpy(float), axis=-1).reshape(-1, size)
        means = sorted({f"{mean:.2f}" for mean in even.mean(axis=1)})
        ends.append(" to ".join([means[0], *means[1:][-1:]]))
    return (
        f"Course: normalized entropy of the expert load, 1 if even: {ends[0]} in the "
        f"first {size} iterations, {ends[1]} in the last {size} (entropy.png)."
    )


def _next(output: Path) -> list[str]:
    """Name the page, and the next command of each of three users."""
    return [
        f"Report: {output / 'report.html'} (open it in a browser); tables: "
        f"{output / 'summary.txt'}",
        "Next, to capture your training: moetraffic run -o mine.h5 -- torchrun "
        "--nproc-per-node 2 train.py",
        f"Next, to judge a network: moetraffic fabric {output / 'run.h5'} --topology "
        "leaf-spine --oversubscription 2 --capacity 100Gbps",
        f"Next, for a scheduler: moetraffic evaluate {output / 'run.h5'}",
    ]


def _stage(text: str, quiet: bool) -> None:
    if not quiet:
        say(text)


def _refuse_ranks(nproc: int) -> None:
    """Refuse a number of ranks that does not divide the experts."""
    check_rank_count(nproc)
    if nproc < 2 or EXPERTS % nproc:
        raise LayoutError(
            f"the demo spreads {EXPERTS} experts evenly over several ranks, but "
            f"--nproc is {nproc}: give 2, 4 or 8"
        )


def _replay(run: Path, replayed: Path, nproc: int, iterations: str) -> dict[str, Any]:
    """Replay in a process of its own: the command line does not import replay."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "moetraffic.replay", str(run)),
            *("-o", str(replayed), "--nproc", str(nproc), "--iterations", iterations),
            *("--json", "--force"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise ReplayError("the replay of the demo failed, see the error above")
    told: dict[str, Any] = json.loads(ran.stdout)
    return told
