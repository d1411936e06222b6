"""``moetraffic demo``: the whole way, from training on text to a verified replay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import LayoutError, MoetrafficError, ReplayError
from moetraffic.launch.machine_resources import check_rank_count, check_workload
from moetraffic.launch.training import capture_run
from moetraffic.patterns import Gating, ModelShape, ParallelLayout, Training, Workload
from moetraffic.report.overview import overview, tables
from moetraffic.report.terminal import Paper, say
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import remedy, validate_folder

from .capture import OVERWRITE
from .output import console, json_text, print_json, progress

EXPERTS = 8
WRITES = ("run.h5", "replayed.h5", "summary.txt", "summary.json")


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder to write.")
    ] = Path("demo"),
    nproc: Annotated[int, typer.Option(help="Ranks.")] = 4,
    iterations: Annotated[int, typer.Option(help="Training steps.")] = 300,
    corpus: Annotated[
        str | None,
        typer.Option(help="Text.", show_default="Python's own library"),
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite an earlier demo.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a MoE GPT on real text, capture it, analyze it and replay it.

    Writes run.h5, replayed.h5, summary.txt, summary.json and pictures.

    Example: moetraffic demo -o demo
    """
    _refuse_ranks(nproc)
    workload = Workload(
        model=ModelShape(layers=4, hidden=128, experts=EXPERTS, moe_every=2),
        gating=Gating(router="topk", k=2, dispatch="dropless"),
        layout=ParallelLayout(dp=nproc, ep=nproc),
        training=Training(iterations=iterations, corpus=_named(corpus)),
    )
    _refuse_earlier(output, force)
    check_workload(workload, ranks=nproc)
    run, replayed = output / "run.h5", output / "replayed.h5"
    with _folder(output):
        _stage(f"1/4 train on {nproc} ranks and capture every collective", as_json)
        with progress("training", iterations, quiet=as_json) as tick:
            trace = capture_run(
                workload, run, force=force, on_step=tick, overwrite=OVERWRITE
            )
    assert trace is not None  # this process is no rank
    with trace:
        held = overview(trace, run)
    _stage("2/4 replay its all-to-alls, every byte verified", as_json)
    replay = _replay(run, replayed, nproc)
    _stage("3/4 analyze", as_json)
    with Trace.open(run) as trace:
        from moetraffic.analysis import analyze
        from moetraffic.report import pictures, summary
        from moetraffic.report.plain_data import as_dict

        found = analyze(trace)
        _stage("4/4 draw", as_json)
        drawn = pictures.draw(trace, found, output)
        told = {
            "capture": held,
            "analysis": as_dict(found),
            "replay": replay,
            "pictures": [path.name for path in drawn],
        }
        (output / "summary.json").write_text(json_text(told) + "\n")
        with (output / "summary.txt").open("w") as file:
            paper = Paper(file=file, width=120, highlight=False)
            paper.print(*tables(trace, run))
            paper.print(*summary.tables(found))
            paper.print(summary.replay_table(replay))
        if as_json:
            print_json(told)
            return
        console.print(*summary.tables(found))
        console.print(summary.replay_table(replay))
    written = [*WRITES, *(path.name for path in drawn)]
    console.print(f"{output}: {', '.join(written)}")


def _stage(text: str, quiet: bool) -> None:
    if not quiet:
        say(text)


def _refuse_ranks(nproc: int) -> None:
    """Refuse ranks over which the demo's experts do not spread."""
    check_rank_count(nproc)
    if nproc < 2 or EXPERTS % nproc:
        raise LayoutError(
            f"the demo spreads {EXPERTS} experts evenly over several ranks, but "
            f"--nproc is {nproc}: give 2, 4 or 8"
        )


def _named(corpus: str | None) -> str:
    if corpus == "":
        raise LayoutError(
            "a corpus is a file, a folder or a glob, but --corpus is empty: leave it "
            "out for the source text of Python's standard library"
        )
    return corpus or ""


def _refuse_earlier(output: Path, force: bool) -> None:
    try:
        validate_folder(output.absolute().parent, error=MoetrafficError)
        if output.exists() and not output.is_dir():
            raise MoetrafficError(f"{output} is no folder: choose another with -o")
        there = [name for name in WRITES if (output / name).exists()]
    except OSError as error:
        raise _unmade(output, error) from None
    if there and not force:
        raise MoetrafficError(
            f"{output} holds {', '.join(there)} of an earlier demo, which is not "
            "overwritten: choose another folder with -o, or give --force"
        )


@contextmanager
def _folder(output: Path) -> Iterator[None]:
    """The folder of the demo, which goes again if nothing comes into it."""
    try:
        new = not output.exists()
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise _unmade(output, error) from None
    try:
        yield
    finally:
        if new and not any(output.iterdir()):
            output.rmdir()


def _unmade(output: Path, error: OSError) -> MoetrafficError:
    return MoetrafficError(
        f"the folder {str(output)[:200]} cannot be made ({error.strerror}): "
        f"{remedy(error)}"
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
