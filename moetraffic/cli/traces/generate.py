"""``moetraffic generate``: synthetic traces of any length and size."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from moetraffic.cli.output import progress
from moetraffic.cli.show import AllTables, AsJson, Force, Only, show
from moetraffic.errors import Interrupted, LayoutError
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import trace_argument, trace_output
from moetraffic.trace import Trace

SIZE, SCENARIO = "Size", "Scenario (surrogate)"


def _size(help: str) -> Any:
    return Option(help=help, min=1, show_default="as captured", rich_help_panel=SIZE)


def _scenario(help: str, *, most: float | None = None) -> Any:
    return Option(help=help, min=0, max=most, rich_help_panel=SCENARIO)


def generate(
    runs: Annotated[
        list[Path] | None,
        trace_argument("Trace, or reruns to fit together, or a model that was saved."),
    ] = None,
    output: Path | None = trace_output(None),
    preset: Annotated[
        str, Option("--from", help="Shipped model, such as top2-balanced-early.")
    ] = "",
    copy: Annotated[
        bool,
        Option(
            "--copy",
            help="Copy the run with its experts relabeled, in place of new traffic.",
        ),
    ] = False,
    samples: Annotated[
        int, Option(help="Number of independent runs, a file each.", min=1)
    ] = 1,
    seed: Annotated[
        int, Option(help="Random seed; the same seed gives the same file.", min=0)
    ] = 0,
    iterations: Annotated[int | None, _size("Number of iterations.")] = None,
    ranks: Annotated[int | None, _size("Number of ranks.")] = None,
    experts: Annotated[int | None, _size("Number of experts.")] = None,
    k: Annotated[int | None, _size("Experts per token (top-k).")] = None,
    ep: Annotated[int | None, _size("Number of expert-parallel ranks.")] = None,
    skew: Annotated[float, _scenario("Factor of the skew of the load.", most=10)] = 1.0,
    drift: Annotated[float, _scenario("Factor of the load's speed.", most=10)] = 1.0,
    rank_imbalance: Annotated[
        float, _scenario("Factor of the differences between ranks.", most=10)
    ] = 1.0,
    period: Annotated[
        int,
        _scenario("Iterations after which the load's movement repeats; 0: never."),
    ] = 0,
    hand_over: Annotated[
        int,
        _scenario("Iterations after which another expert is the hottest; 0: fitted."),
    ] = 0,
    no_times: Annotated[
        bool, Option("--no-times", help="Leave out the times of calls.")
    ] = False,
    save_model: Annotated[
        Path | None, Option(help="File for the fitted traffic model.")
    ] = None,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    """Sample synthetic traces from a surrogate that is fitted to runs.

    A surrogate is new traffic: of one run it keeps the levels of the load, and of
    several reruns it also has their spread.  With --copy the run is copied.
    The trace is streamed to disk; Ctrl-C keeps the iterations that are complete.

    Example: moetraffic generate run.h5 -o synthetic.h5 --ranks 64

    Example: moetraffic generate run.h5 rerun1.h5 rerun2.h5 --samples 8 -o synthetic.h5
    """
    # scipy takes a second to import
    from moetraffic.report.views.generate import result_of
    from moetraffic.synthetic.api import copy_of, model_of
    from moetraffic.synthetic.surrogate import Knobs
    from moetraffic.synthetic.write import SyntheticRun

    sources = runs or []
    if bool(sources) == bool(preset) or (output is None and save_model is None):
        raise LayoutError(
            "generate needs traces, a model or --from NAME, and -o or --save-model: "
            "give one of each"
        )
    paths = [] if output is None else [output]
    if output is not None and samples > 1:
        paths = [
            output.with_stem(f"{output.stem}-{number}")
            for number in range(1, samples + 1)
        ]
    validate_outputs((*paths, save_model), sources, force=force)
    knobs = Knobs(
        skew=skew,
        drift=drift,
        rank_imbalance=rank_imbalance,
        period=period,
        hand_over=hand_over,
    )
    model = None
    if not copy:
        count = max(len(sources), 1)
        with progress("fitting", count, quiet=as_json) as tick:
            model = model_of(sources or [preset], tick)
    elif preset or len(sources) > 1 or save_model or knobs != Knobs() or experts or k:
        raise LayoutError(
            "--copy copies one trace as it is, but a model, several traces, other "
            "experts or a scenario are given: leave them out, or leave out --copy"
        )
    if save_model is not None and model is not None:
        model.save(save_model, force=force)
    written: list[tuple[Path, SyntheticRun, int]] = []
    for number, path in enumerate(paths, seed):
        size = {"iterations": iterations, "ranks": ranks, "ep": ep}
        if model is None:
            run = copy_of(Trace.open(sources[0]), seed=number, **size)
        else:
            run = model.sample(seed=number, experts=experts, k=k, knobs=knobs, **size)
        if no_times:
            run = replace(run, times=None)
        asked = run.counts.iterations
        with progress(f"generating {path.name}", asked, quiet=as_json) as tick:
            done = run.write(path, tick=tick, force=force)
        written.append((path, run, done))
        if done < asked:
            break
    show(
        result_of(written, model=model, saved=save_model, knobs=knobs),
        tables=tables,
        only=only,
        as_json=as_json,
    )
    if written and done < asked:
        raise Interrupted(
            f"the generation was interrupted; {done} of {asked} iterations are kept in "
            f"{path}",
            signal.SIGINT,
        )
