"""``moetraffic demo``: train, capture, analyze and replay in one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from moetraffic.capture.training import capture_run, check_workload
from moetraffic.cli.output import json_text, make_folder, progress
from moetraffic.errors import LayoutError, ReplayError
from moetraffic.launch.devices import check_rank_count
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload
from moetraffic.report.console.options import AsJson, Force, option
from moetraffic.report.console.terminal import Paper, announce, say
from moetraffic.result import table_lines
from moetraffic.text import LOG_WIDTH
from moetraffic.trace import Trace
from moetraffic.units import byte_size

from .capture import OVERWRITE

EXPERTS = 8
WRITES = ("run.h5", "replayed.h5", "report.html", "summary.txt", "summary.json")
REPLAYED = 20
"""Number of iterations that are replayed: the last ones."""

LEFT_OUT = ("measures", "spectrum", "overview", "stages")
"""Tables that summary.txt lacks: thousands of rows, or those of the first screen."""


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
        layout=Layout(dp=nproc, ep=nproc),
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
    last = min(iterations, REPLAYED)
    _stage(
        f"2/3 replay the collectives of the last {last} iterations and verify every "
        "byte",
        as_json,
    )
    replay = _replay(run, replayed, nproc, f"{iterations - last}:{iterations}")
    _stage("3/3 analyze the run and draw the report", as_json)
    from moetraffic.report.page import write_report
    from moetraffic.report.views.info import info
    from moetraffic.report.views.pictures import draw

    with Trace.open(run) as trace, Trace.open(replayed) as again:
        capture = info(trace, run)
        result = write_report(trace, page, replay=again, force=True).result
        drawn = draw(trace, result, output)
    answers = {
        "capture": capture.to_dict(),
        "analysis": result.to_dict(),
        "replay": replay,
        "pictures": [path.name for path in drawn],
    }
    (output / "summary.json").write_text(json_text(answers) + "\n")
    with (output / "summary.txt").open("w") as file:
        for answer in (result, capture):
            for line in answer.lines(answer.screen, width=LOG_WIDTH):
                print(line, file=file)
            for name in answer.tables:
                rows = answer.rows(name)
                if rows and name not in (*LEFT_OUT, *answer.screen):
                    print(f"\n{name}", file=file)
                    for line in table_lines(rows, width=LOG_WIDTH):
                        print(line, file=file)
            print(file=file)
    if as_json:
        print(json_text(answers))
        return
    console = Paper()
    console.print(result)
    for sentence in (_replayed(replay), *_next(output)):
        console.say(sentence)


def _replayed(replay: dict[str, Any]) -> str:
    """State all-to-alls and bytes of a replay, and whether they were verified."""
    (row,) = (r for r in replay["tables"]["kinds"] if r["call"] == "all-to-all")
    data = replay["data"]
    checked = "every size and byte verified"
    if data["verified"] != "full":
        checked = f"verification: {data['verified']}"
    return (
        f"Replayed: {row['calls']:,} all-to-alls, {byte_size(row['sent'])} "
        f"between {data['ranks']} ranks, {checked}."
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
