"""Studies of ``estimate``: one configuration, sweeps and the best layouts, as shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.cli.output import Shown
from moetraffic.errors import LayoutError
from moetraffic.patterns import ModelShape, time_model
from moetraffic.patterns.layouts.parallelism import RECOMPUTE
from moetraffic.patterns.time_model import (
    Configuration,
    MeasuredLinks,
    NodeLinks,
    System,
)
from moetraffic.patterns.time_model.links import OF_NIC
from moetraffic.report import run_projection as projected
from moetraffic.report.console.options import positive_numbers
from moetraffic.report.results import time_model as report
from moetraffic.report.trained import model_words
from moetraffic.trace import Trace
from moetraffic.units import bytes_per_second

from .assumptions import is_table
from .model_shape import model_of

if TYPE_CHECKING:
    from moetraffic.patterns.time_model import Conventions
    from moetraffic.report.chart import Chart

SHOWN, DRAWN = 12, 6
"""Number of best configurations in the table, and in the picture."""

EACH = 8
"""Sequences a GPU in an iteration of a search, without a global batch."""


def one_estimate(
    config: Configuration,
    system: System,
    conventions: Conventions,
    what: str,
    source: str,
) -> Shown:
    """Estimate one configuration, with ZeRO stages or sensitivities if asked for."""
    layout, batch = report.layout_words(config)
    title = f"{layout}, {batch}, {source}"
    if what == "zero":
        staged = replace(config, zero=np.arange(4.0))
        stages = time_model.estimate(
            staged, system, conventions=conventions, strict=False
        )
        names = [f"ZeRO {stage}" for stage in range(4)]
        return _study(
            report.range_sentences(
                stages,
                names,
                f"Layout: {layout}; {batch}",
                f"Model: {source}",
                model_words(config),
            ),
            report.several(stages, names, "stage", title),
            report.figure(stages, names, title="ZeRO stages", source=title),
            {"zero_stages": report.as_dict(stages)},
        )
    found = time_model.estimate(config, system, conventions=conventions)
    shown = Shown(
        summary=report.summary(found, source),
        parts={"terms": [report.table(found, title)]},
        chart=report.figure(found, ["T_iter"], source=title),
        data={"estimate": report.as_dict(found)},
    )
    links = system.bandwidth
    if isinstance(links, MeasuredLinks):
        calls = time_model.traffic(config, conventions)
        if beyond := [name for one in calls if (name := links.extrapolated(one))]:
            shown.summary.append(
                f"Extrapolated, not measured: {', '.join(dict.fromkeys(beyond))} "
                f"(nodes of {links.gpus} GPUs; --gpus-per-node: those of the nodes "
                "that were measured)."
            )
            shown.data["extrapolated"] = beyond
    if what == "sensitivity":
        moved = time_model.sensitivity(config, system, conventions=conventions)
        title = "Sensitivity of the iteration time"
        table = report.sensitivity_table(moved, title)
        shown.summary.append(report.sensitivity_sentence(moved))
        shown.parts["study"] = [table]
        shown.data["elasticities"] = {
            name: value.tolist() for name, value in moved.elasticities.items()
        }
        shown.data["other_conventions"] = {
            name: value.tolist() for name, value in moved.conventions.items()
        }
    return shown


def _study(lines: list[str], table: Any, chart: Chart, data: dict[str, Any]) -> Shown:
    """Show a study: sentences, and a table."""
    return Shown(summary=lines, parts={"study": [table]}, chart=chart, data=data)


def scaling_sweep(
    config: Configuration,
    system: System,
    conventions: Conventions,
    scaling: str,
    sizes: list[int],
    source: str,
) -> Shown:
    """Estimate one configuration on more ranks, or with larger batches."""
    found = time_model.sweep(config, system, scaling, sizes, conventions=conventions)
    unit = "sequence" if scaling == "large-batch" else "GPU"
    counts = sizes if scaling == "large-batch" else found.gpus.astype(int).tolist()
    names = [f"{count} {unit}{'' if count == 1 else 's'}" for count in counts]
    title = f"{scaling} scaling"
    return _study(
        report.range_sentences(
            found.estimate,
            names,
            f"Sweep: {title}, {source}",
            model_words(config),
        ),
        report.sweep_table(found, names, f"{title}: {source}"),
        report.figure(
            found.estimate,
            names,
            shares=True,
            title=f"{title.capitalize()}: where an iteration's time goes",
            source=source,
        ),
        {
            "scaling": scaling,
            "sizes": sizes,
            "gpus": found.gpus.tolist(),
            "speedup": found.speedup.tolist(),
            "efficiency": found.efficiency.tolist(),
            "estimate": report.as_dict(found.estimate),
        },
    )


def varied(
    config: Configuration,
    system: System,
    conventions: Conventions,
    what: str,
    values: list[str],
    source: str,
) -> Shown:
    """Estimate one configuration at several bandwidths, or with several models."""
    if what in ("bandwidth", "nic"):
        rates = np.array([bytes_per_second(value) for value in values])
        links: Any = rates
        if what == "nic":
            if not isinstance(system.bandwidth, NodeLinks):
                raise LayoutError(
                    "rates of NICs are those of nodes with links of a platform, but "
                    "none is given: give --platform dgx-h100, or --sweep bandwidth"
                )
            every = OF_NIC * rates * system.bandwidth.gpus
            links = replace(system.bandwidth, nic_bytes_s=every)
        system = replace(system, bandwidth=links)
        # an element a rate, where no rate matters too
        config = replace(config, dp=np.full(len(rates), float(config.dp)))
    else:
        models, gatings, _ = zip(*(model_of(v, {}) for v in values), strict=True)
        k = [float(gating.k) for gating in gatings]
        room = [g.capacity_factor * (g.dispatch == "padded") for g in gatings]
        config = replace(config, model=models, k=k, capacity_factor=np.array(room))
    found = time_model.estimate(config, system, conventions=conventions, strict=False)
    heads = {"bandwidth": "bandwidth", "nic": "NIC rate per GPU", "size": "model"}
    head = heads[what]
    title = f"Iteration time by {head}"
    return _study(
        report.range_sentences(
            found, values, f"Sweep: {title}, {source}", model_words(config)
        ),
        report.several(found, values, head, f"{title}: {source}"),
        report.figure(found, values, shares=True, title=title, source=source),
        {"varied": what, "values": values, "estimate": report.as_dict(found)},
    )


def best_layouts(
    config: Configuration,
    system: System,
    conventions: Conventions,
    gpus: int | None,
    batch: int | None,
    fixed: Sequence[str],
    source: str,
) -> Shown:
    """Search the fastest layouts of a number of GPUs.

    ``fixed`` are the searched fields that stay as in the configuration; all others of
    its fields are shared by every layout.
    """
    number = int(config.world) if gpus is None else gpus
    whole = EACH * number if batch is None else batch
    assert isinstance(config.model, ModelShape)  # an option names one model
    among: dict[str, Sequence[float]] = {}
    if config.fused_attention:  # which computes again what "selective" would
        among["recompute"] = tuple(map(RECOMPUTE.index, ("none", "full")))
    among |= {name: (float(getattr(config, name)),) for name in fixed}
    found = time_model.search(
        config.model,
        system,
        gpus=number,
        global_batch=whole,
        conventions=conventions,
        among=among,
        **{
            field.name: getattr(config, field.name)
            for field in fields(config)
            if field.name not in (*time_model.COLUMNS, "model", "accumulation")
        },
    )
    if not len(found.order):
        least = float(found.estimate.memory.total.min()) / 1e9
        raise LayoutError(
            f"no configuration of {number} GPUs fits into memory, the smallest "
            f"of which needs {least:.1f} GB: raise --gpus, or give --memory-gb"
        )
    names, common = report.search_names(found, DRAWN)
    of_batch = f"{whole:,} sequences an iteration"
    title = f"Best of {number} GPUs, {of_batch}"
    if batch is None:
        of_batch += f", {EACH} a GPU (--global-batch)"
    rows = found.rows(SHOWN)
    times = found.estimate.iteration[found.order[: len(rows)]].tolist()
    data = [{**row, "iteration_s": t} for row, t in zip(rows, times, strict=True)]
    return _study(
        report.search_sentences(found, of_batch, f"Best of {number} GPUs, {source}"),
        report.search_table(found, SHOWN, f"{title}: {source}"),
        report.figure(
            found.estimate,
            names,
            at=found.order[: len(names)],
            title=title,
            source=f"{source}. All with {common}" if common else source,
        ),
        {
            **{"gpus": number, "global_batch": whole, "tried": found.tried},
            **{"model_error": time_model.MODEL_ERROR, "within_error": found.unranked},
            "best": data,
        },
    )


def projection(path: Path, sizes: str, efficiency: str, gpus_per_node: int) -> Shown:
    """Project a captured run to other numbers of ranks."""
    from moetraffic.analysis.times.calibration import step_times
    from moetraffic.analysis.times.projection import collectives, measured_efficiency
    from moetraffic.patterns.bandwidth.measurements import read_table

    ranks = positive_numbers(sizes, "sizes are numbers of ranks", "--sizes 16,32")
    if not efficiency:
        raise LayoutError(
            "a projection needs the network's efficiency on more ranks: give "
            "--efficiency 0.8,0.6, or a file of moetraffic bench"
        )
    with Trace.open(path) as trace:
        measured = step_times(trace)
        rows = collectives(trace, measured.steps.tolist())
    if not is_table(efficiency):
        what = "efficiencies are numbers above 0"
        given = positive_numbers(efficiency, what, "--efficiency 0.8,0.6", kind=float)
        if len(given) not in (1, len(ranks)):
            raise LayoutError(
                f"there is one efficiency, or one for each of --sizes, but "
                f"{len(given)} are given for {len(ranks)} sizes: give as many"
            )
        reached = np.array(given * (len(ranks) // len(given)))
        how = "efficiency as given"
    else:
        table = read_table(efficiency)
        reached = measured_efficiency(
            rows, table, measured.ranks, ranks, gpus=gpus_per_node
        )
        how = f"efficiency from {efficiency}"
    data = projected.as_dict(measured, ranks, reached)
    return _study(
        projected.sentences(measured, str(path), data),
        projected.table(data),
        projected.figure(data, f"{path}, {how}"),
        {"projection": data},
    )
