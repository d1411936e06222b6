"""``moetraffic demo``: the whole way, from training on text to a verified replay."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from moetraffic.errors import MoetrafficError, ReplayError
from moetraffic.patterns import Gating, ModelShape, ParallelLayout, Training, Workload
from moetraffic.trace import Trace

from .capture import captured
from .info import show
from .output import console, print_json

WRITES = ("run.h5", "replayed.h5", "summary.txt", "summary.json")


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder to write.")
    ] = Path("demo"),
    nproc: Annotated[int, typer.Option(help="Ranks.")] = 4,
    iterations: Annotated[int, typer.Option(help="Training steps.")] = 300,
    corpus: Annotated[
        str, typer.Option(help="Text; Python's own library if not given.")
    ] = "",
    force: Annotated[bool, typer.Option(help="Overwrite an earlier demo.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a MoE GPT on real text, capture it, analyse it and replay it.

    Writes run.h5, replayed.h5, summary.txt, summary.json and pictures.

    Example: moetraffic demo -o demo
    """
    workload = Workload(
        model=ModelShape(layers=4, hidden=128, experts=8, moe_every=2),
        gating=Gating(router="topk", k=2, dispatch="dropless"),
        layout=ParallelLayout(dp=nproc, ep=nproc),
        training=Training(iterations=iterations, corpus=corpus),
    )
    _refuse_earlier(output, force)
    output.mkdir(parents=True, exist_ok=True)
    say = Console(stderr=True, quiet=as_json, highlight=False)
    say.print(f"1/4 train on {nproc} ranks and capture every collective")
    run, replayed = output / "run.h5", output / "replayed.h5"
    captured(workload, run, force=force, quiet=as_json).close()
    say.print("2/4 replay its all-to-alls, every byte verified")
    replay = _replay(run, replayed, nproc)
    say.print("3/4 analyse")
    with Trace.open(run) as trace:
        from moetraffic.analysis import analyze
        from moetraffic.report import pictures, summary

        found = analyze(trace)
        say.print("4/4 draw")
        drawn = pictures.draw(trace, found, output)
        told = {
            "analysis": summary.as_dict(found),
            "replay": replay,
            "pictures": [path.name for path in drawn],
        }
        (output / "summary.json").write_text(json.dumps(told, indent=1) + "\n")
        with (output / "summary.txt").open("w") as file:
            paper = Console(file=file, width=120, highlight=False)
            show(trace, run, paper)
            paper.print(summary.tables(found))
            paper.print(summary.replay_table(replay))
        if as_json:
            print_json(told)
            return
        console.print(summary.tables(found))
        console.print(summary.replay_table(replay))
    written = [*WRITES, *(path.name for path in drawn)]
    console.print(f"{output}: {', '.join(written)}")


def _refuse_earlier(output: Path, force: bool) -> None:
    if output.exists() and not output.is_dir():
        raise MoetrafficError(f"{output} is no folder: choose another with -o")
    there = [name for name in WRITES if (output / name).exists()]
    if there and not force:
        raise MoetrafficError(
            f"{output} holds {', '.join(there)} of an earlier demo, which is not "
            "overwritten: choose another folder with -o, or give --force"
        )


def _replay(run: Path, replayed: Path, nproc: int) -> dict[str, Any]:
    """Replay in a process of its own: the core imports no wing."""
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
        raise ReplayError("the replay of the demo failed, as said above: see README")
    told: dict[str, Any] = json.loads(ran.stdout)
    return told
