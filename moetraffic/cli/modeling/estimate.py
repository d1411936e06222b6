"""``moetraffic estimate``: the time of a training iteration, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from moetraffic.cli.show import AllTables, AsJson, Force, Only, Output, show
from moetraffic.errors import LayoutError
from moetraffic.files import validate_outputs
from moetraffic.patterns import Layout, ModelShape
from moetraffic.report.console.options import Plot, option, positive_numbers, takes
from moetraffic.result import Result
from moetraffic.spelling import check_choice
from moetraffic.timemodel import (
    COMPARED,
    GPUS,
    STACKS,
    MeasuredLinks,
    System,
    practice,
)
from moetraffic.trace import Trace

from . import choices as o
from .system import fused, hardware, is_table, measured_shares, overlaps

if TYPE_CHECKING:
    from moetraffic.analysis.times.calibration import Calibration
    from moetraffic.report.chart import Chart

SYSTEM, STUDY = "System", "What to estimate"

EACH = 8
"""Sequences a GPU in an iteration of a search, without a global batch."""

OF_THE_GPUS = ("pp", "tp", "dp", "cp")
"""Factors of the number of GPUs: --best keeps those beside --gpus."""


@takes(chosen=o.OPTIONS)
def estimate(
    ctx: typer.Context,
    model: o.Model = o.MODEL_NAME,
    imbalance_from: o.ImbalanceFrom = None,
    settings: o.Set = None,
    help_fields: o.HelpFields = False,
    stack: str = option(
        "",
        f"Practice of a library: {', '.join(STACKS)}, none. It sets sharding, sequence "
        "parallelism and overlap where they are not given.",
        panel=SYSTEM,
    ),
    platform: str = option("", "Published system, or a file of bench.", panel=SYSTEM),
    gpu: str = option("", f"GPU: {', '.join(GPUS)}; A100.", panel=SYSTEM),
    bandwidth: str = option(
        "",
        "Effective bandwidth of all links: 25GB/s, by kind of traffic "
        "tp=300GB/s,dp=25GB/s, or a file of moetraffic bench.",
        panel=SYSTEM,
    ),
    nic: str = option("", "Rate of a platform's NICs a GPU: 400Gbps.", panel=SYSTEM),
    protocol: str = option("", "Protocol whose efficiency NICs get.", panel=SYSTEM),
    overlap: str | None = option(
        None, "Traffic behind compute: dp,tp=0.2.", panel=SYSTEM
    ),
    calibrate: Path | None = option(
        None, "Captured run: its model, batch and speeds are used.", panel=SYSTEM
    ),
    best: bool = option(False, "Find the fastest layout.", "--best", panel=STUDY),
    gpus: str | None = option(None, "GPUs of --best, --project.", panel=STUDY),
    sensitivity: bool = option(
        False, "Change by 1% of an input.", "--sensitivity", panel=STUDY
    ),
    project: Path | None = option(
        None, "Captured run, projected to --gpus.", panel=STUDY
    ),
    efficiency: str = option(
        "",
        "Network efficiency there over the captured one's: 0.8,0.6, or a file.",
        panel=STUDY,
    ),
    plot: Plot = None,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    output: Output = None,
    force: Force = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Estimate the time of an iteration, of several layouts, or the best layout.

    Options of model, layout and system take lists: --dp 8,16 --zero 0,1 is one table.

    Example: moetraffic estimate --model gpt-3b --pp 4 --tp 2 --dp 4 --platform polaris
    """
    validate_outputs((plot,), (calibrate, imbalance_from, project), force=force)
    chosen = o.given(chosen, settings)
    systems = {"platform": platform, "gpu": gpu, "nic": nic, "protocol": protocol}
    chosen |= {name: o.parts(text) for name, text in systems.items() if text}
    if bandwidth:
        chosen["bandwidth"] = [bandwidth] if "=" in bandwidth else o.parts(bandwidth)
    if overlap is not None:
        chosen["overlap"] = [overlap]
    if stack:
        chosen["stack"] = o.parts(stack)
    chart: Chart | None = None
    ranks = positive_numbers(gpus, "--gpus are whole numbers", "--gpus 16,32")
    if project is not None:
        result = projection(project, ranks, efficiency, chosen)
    elif best:
        result, chart = best_layouts(model, chosen, ranks, imbalance_from)
    else:
        fit = calibrated_on(ctx, calibrate, chosen) if calibrate else None
        given = {**({} if fit else {"model": o.parts(model)}), **chosen}
        result, chart = estimates(ctx, given, imbalance_from, fit, sensitivity)
    if plot is not None:
        if chart is None:
            raise LayoutError("a projection has no picture: leave out --plot")
        from moetraffic.report import figures

        figures.save(chart, plot)
    show(result, as_json=as_json, tables=tables, only=only, output=output, force=force)


# ---- what is estimated ---------------------------------------------------------------

Inputs = tuple[Layout, System, str]
"""Layout, system and the name of the practice."""


def inputs_of(
    row: o.Row, imbalance_from: Path | None, fit: Calibration | None
) -> Inputs:
    """Make layout and system of one combination of values."""
    overlap = {"overlap": overlaps(row["overlap"])} if "overlap" in row else {}
    more = o.of_part(row, "system") | overlap
    name = row.get("stack", "none")
    check_choice("--stack", name, (*STACKS, "none"), LayoutError)
    if fit is not None:
        fields = o.of_part(row, "layout")
        batch = fit.config.sequences / fit.config.dp * fields.get("dp", fit.config.dp)
        layout = replace(fit.config, **{"global_batch": int(batch), **fields})
        system = replace(fit.system, **more)
        if "bandwidth" in row:
            known = hardware(row, roofline=False)["bandwidth"]
            system = replace(system, bandwidth=known)
    else:
        shape, gating, usual = o.model_of(row)
        fields = {"fused_attention": fused(row), **o.layout_fields(row, usual)}
        dispatched = fields.get("dispatcher", "plain") != "plain"
        fields = {**({"gpus_per_node": 8} if dispatched else {}), **fields}
        layout = Layout.of(shape, Layout(**fields), gating)
        known = hardware(row, roofline="utilization" not in row)
        system = System(**{**known, **more})
        if layout.world > 1 and "bandwidth" not in known:
            raise LayoutError(
                "more than one GPU needs a network, but no bandwidth is known: give "
                "--bandwidth 25GB/s or --platform dgx-h100"
            )
    if name != "none":
        layout, system = practice(name, layout, system, row.keys())
    if imbalance_from is not None:
        assert isinstance(layout.model, ModelShape)
        shares = measured_shares(imbalance_from, layout.model, int(layout.ep))
        layout = replace(layout, imbalance=layout.ep * float(shares.max()))
    return layout, system, name


def calibrated_on(
    ctx: typer.Context, path: Path, chosen: dict[str, list[Any]]
) -> Calibration:
    """Fit the time model to a captured run, which gives model and system."""
    from moetraffic.analysis.times.calibration import calibrated

    of_model = [n for n in chosen if o.PART.get(n) in ("model", "routing")]
    source = ctx.get_parameter_source("model")
    of_model += ["model"] * (source is not None and source.name == "COMMANDLINE")
    if twice := [*of_model, *(n for n in ("platform", "gpu", "nic") if n in chosen)]:
        raise LayoutError(
            f"--calibrate and {', '.join(map(o.spelled, twice))} give the same: leave "
            "one of them out"
        )
    with Trace.open(path) as trace:
        return calibrated(trace)


def words(row: o.Row, fit: Calibration | None) -> str:
    """Name the model and what it runs on."""
    if fit is not None:
        return "the captured model"
    on = row.get("platform") or row.get("gpu", "A100 (default)")
    model = row["model"] + " (default)" * (row["model"] == o.MODEL_NAME)
    return f"{model} on {on}"


def remarks(name: str, system: System) -> list[str]:
    """State the practice that times are of, and a GPU without a compared run."""
    notes = ["no practice of a library (--stack): nothing overlaps unless it is given"]
    if name != "none":
        notes = [f"practice {name}: {STACKS[name].source}"]
    if system.gpu is not None and system.gpu.name not in COMPARED:
        notes.append(
            f"no published run on {system.gpu.name} was compared with the model"
        )
    return notes


# ---- the studies ---------------------------------------------------------------------


def estimates(
    ctx: typer.Context,
    chosen: dict[str, list[Any]],
    imbalance_from: Path | None,
    fit: Calibration | None,
    sensitive: bool,
) -> tuple[Result, Chart]:
    """Estimate each combination of values."""
    from moetraffic import timemodel
    from moetraffic.report.views import estimate as view

    rows = o.combinations(chosen)
    if len(rows) == 1:
        (row,) = rows
        layout, system, name = inputs_of(row, imbalance_from, fit)
        found = timemodel.estimate(layout, system)
        o.refuse_idle(
            ctx,
            row,
            lambda values: inputs_of(values, imbalance_from, fit)[:2],
            lambda pair: view.facts(timemodel.estimate(*pair)),
        )
        moved = timemodel.sensitivity(layout, system) if sensitive else None
        said = [*remarks(name, system), *extrapolated(system, found)]
        of = words(row, fit)
        result = view.one(found, of, notes=said, sensitivity=moved, calibration=fit)
        return result, view.terms_chart([found], ["T_iter"], of, result.head)
    if sensitive:
        raise LayoutError("a sensitivity is of one configuration: give no lists")
    founds: list[Any] = []
    refused: LayoutError | None = None
    notes: list[str] = []
    for row in rows:
        try:
            layout, system, name = inputs_of(row, imbalance_from, fit)
            founds.append(timemodel.estimate(layout, system))
            notes += remarks(name, system)
        except LayoutError as error:
            founds.append(None)
            refused = refused or error
    if refused is not None and not any(found is not None for found in founds):
        raise refused
    varied = o.varied(chosen)
    notes = [*dict.fromkeys(notes), *([f"impossible: {refused}"] if refused else [])]
    of = f"{words(rows[0], fit)}: {', '.join(varied[0])} vary"
    result = view.several(founds, varied, of, notes)
    pairs = [(f, view.named(v)) for f, v in zip(founds, varied, strict=True) if f]
    drawn, labels = zip(*pairs, strict=True)
    return result, view.terms_chart(drawn, labels, of, result.verdict[0])


def extrapolated(system: System, found: Any) -> list[str]:
    """Name calls that the measurements of a system do not surround."""
    if not isinstance(links := system.bandwidth, MeasuredLinks):
        return []
    names = dict.fromkeys(filter(None, map(links.extrapolated, found.traffic)))
    return [f"extrapolated, not measured: {', '.join(names)}"] if names else []


def best_layouts(
    model: str,
    chosen: dict[str, list[Any]],
    gpus: Sequence[int],
    imbalance_from: Path | None,
) -> tuple[Result, Chart]:
    """Search the fastest layouts; lists of values restrict what is tried."""
    from moetraffic import timemodel
    from moetraffic.report.views import estimate as view

    among = {
        name: values
        for name, values in chosen.items()
        if name in timemodel.COLUMNS and (gpus or name not in OF_THE_GPUS)
    }
    rest = {name: values for name, values in chosen.items() if name not in among}
    several = [n for n, v in rest.items() if len(v) > 1 and n not in OF_THE_GPUS]
    if several := several + ["gpus"] * (len(gpus) > 1):
        raise LayoutError(
            f"a search is of one {several[0]}, but several are given: give one"
        )
    row = {"model": model} | {name: values[0] for name, values in rest.items()}
    if imbalance_from is not None and "ep" not in among:
        raise LayoutError(
            "a measured imbalance is that of a number of expert-parallel ranks, but "
            "--best tries several: give --ep"
        )
    one = {name: values[0] for name, values in among.items() if name == "ep"}
    layout, system, name = inputs_of({**row, **one}, imbalance_from, None)
    number = gpus[0] if gpus else int(layout.world)
    batch = row.get("global_batch") or EACH * number
    if layout.fused_attention:  # which computes again what "selective" would
        among.setdefault("recompute", ["none", "full"])
    assert isinstance(layout.model, ModelShape)
    found = timemodel.search(
        layout.model,
        system,
        gpus=number,
        global_batch=batch,
        among=among,
        **timemodel.shared(layout),
    )
    if not len(found.order):
        least = float(np.min(found.estimate.memory.total)) / 1e9
        raise LayoutError(
            f"no configuration of {number} GPUs fits into memory, the smallest of "
            f"which needs {least:.1f} GB: raise --gpus, or give --set memory_bytes=80e9"
        )
    of = f"{words(row, None)}, {number:,} GPUs, {batch:,} sequences an iteration"
    result = view.best(found, of, remarks(name, system))
    top = [found.at(n) for n in range(min(len(found.order), view.DRAWN))]
    labels = [view.named(view.layout_row(r)) for r in result.rows("best")]
    title = f"Best layouts: {of}"
    return result, view.terms_chart(top, labels[: len(top)], title, result.verdict[0])


def projection(
    path: Path, ranks: list[int], efficiency: str, chosen: Mapping[str, list[Any]]
) -> Result:
    """Project a captured run to other numbers of ranks."""
    from moetraffic.analysis.times.calibration import step_times
    from moetraffic.analysis.times.projection import collectives, measured_efficiency
    from moetraffic.patterns.bandwidth import read_table
    from moetraffic.report.views import estimate as view
    from moetraffic.timemodel import projected_speedup

    if others := [name for name in chosen if name != "gpus_per_node"]:
        raise LayoutError(
            f"--project takes all but --gpus and --efficiency from the captured run: "
            f"leave out {', '.join(map(o.spelled, others))}"
        )
    if not efficiency or not ranks:
        raise LayoutError(
            "a projection needs numbers of ranks and the network's efficiency there: "
            "give --gpus 16,32 and --efficiency 0.8,0.6, or a file of moetraffic bench"
        )
    with Trace.open(path) as trace:
        measured = step_times(trace)
        rows = collectives(trace, measured.steps.tolist())
    if is_table(efficiency):
        per = int(chosen.get("gpus_per_node", [8])[0])
        table = read_table(efficiency)
        reached = measured_efficiency(rows, table, measured.ranks, ranks, gpus=per)
    else:
        what = "efficiencies are numbers above 0"
        given = positive_numbers(efficiency, what, "--efficiency 0.8,0.6", kind=float)
        if len(given) not in (1, len(ranks)):
            raise LayoutError(
                f"there is one efficiency, or one for each of --gpus, but "
                f"{len(given)} are given for {len(ranks)}: give as many"
            )
        reached = np.array(given * (len(ranks) // len(given)))
    speedup = projected_speedup(measured.compute_s, measured.communication_s, reached)
    return view.projection(measured, ranks, reached, speedup, str(path))
