"""``moetraffic demo``: train, capture, analyze and replay in one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

from moetraffic.errors import LayoutError, ReplayError
from moetraffic.launch.machine_resources import check_rank_count, check_workload
from moetraffic.launch.training import capture_run
from moetraffic.patterns import Gating, ModelShape, ParallelLayout, Training, Workload
from moetraffic.report.console.options import AsJson, Force, option
from moetraffic.report.console.terminal import Paper, say
from moetraffic.report.results.overview import overview, tables
from moetraffic.trace import Trace

from .capture import OVERWRITE, refuse_empty_corpus
from .output import json_text, make_folder, present, progress

EXPERTS = 8
WRITES = ("run.h5", "replayed.h5", "summary.txt", "summary.json")


def demo(
    output: Annotated[Path, option("Folder to write.", "-o", "--output")] = Path(
        "demo"
    ),
    nproc: Annotated[int, option("Number of ranks.")] = 4,
    iterations: Annotated[int, option("Number of training iterations.")] = 300,
    corpus: Annotated[
        str | None,
        option(
            "Text to train on: a file, folder or glob; random: random tokens.",
            shown="Python's standard library",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a MoE GPT on real text, capture it, analyze it and replay it.

    Writes run.h5, replayed.h5, summary.txt, summary.json and pictures.

    Example: moetraffic demo -o demo
    """
    _refuse_ranks(nproc)
    refuse_empty_corpus(corpus)
    workload = Workload(
        model=ModelShape(layers=4, hidden=128, experts=EXPERTS, moe_every=2),
        gating=Gating(router="topk", k=2, dispatch="dropless"),
        layout=ParallelLayout(dp=nproc, ep=nproc),
        training=Training(iterations=iterations, corpus=corpus or ""),
    )
    check_workload(workload, ranks=nproc)
    make_folder(output, WRITES, force=force)
    run, replayed = output / "run.h5", output / "replayed.h5"
    _stage(f"1/4 train on {nproc} ranks and capture every collective", as_json)
    with progress("training", iterations, quiet=as_json) as tick:
        trace = capture_run(
            workload, run, force=force, on_step=tick, overwrite=OVERWRITE
        )
    assert trace is not None  # this process is no rank
    with trace:
        held = overview(trace, run)
    _stage("2/4 replay its all-to-alls and verify every byte", as_json)
    replay = _replay(run, replayed, nproc)
    _stage("3/4 analyze the trace", as_json)
    with Trace.open(run) as trace:
        from moetraffic.analysis import analyze
        from moetraffic.report.answer import sentences
        from moetraffic.report.plain_data import as_dict
        from moetraffic.report.results import pictures, summary

        found = analyze(trace)
        _stage("4/4 plot", as_json)
        drawn = pictures.draw(trace, found, output)
        told = {
            "capture": held,
            "analysis": as_dict(found, file=str(run)),
            "replay": replay,
            "pictures": [path.name for path in drawn],
        }
        (output / "summary.json").write_text(json_text(told) + "\n")
        with (output / "summary.txt").open("w") as file:
            paper = Paper(file=file, width=120, highlight=False)
            paper.print(*tables(trace, run))
            lines = sentences(found, file=str(run))
            replayed_table = summary.replay_table(replay)
            for line in lines:
                paper.print(line, soft_wrap=True)
            paper.print("", *summary.tables(found), replayed_table)
    written = [*(output / name for name in WRITES), *drawn]
    present(told, *lines, replayed_table, as_json=as_json, written=written)


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


def _replay(run: Path, replayed: Path, nproc: int) -> dict[str, Any]:
    """Replay in a process of its own: the command line does not import replay."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "moetraffic.replay", str(run)),
            *("-o", str(replayed), "--nproc", str(nproc), "--json", "--force"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise ReplayError("the replay of the demo failed, see the error above")
    told: dict[str, Any] = json.loads(ran.stdout)
    return told
