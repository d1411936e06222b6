"""Tabulate, draw and export snapshots of a run in progress."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from prometheus_client import Metric, generate_latest

from moetraffic.analysis.skew.collapse import COLLAPSED, STARVED
from moetraffic.arrays import Float64
from moetraffic.files import write_errors, write_whole
from moetraffic.report.chart import Axis, Chart, Panel, Series
from moetraffic.tables import Table, tables_of
from moetraffic.trace.model import Source
from moetraffic.units import byte_size, duration, rank_span
from moetraffic.watch import LayerSnapshot, Snapshot
from moetraffic.watch.snapshot import mean

WITHOUT_WAITING = "excluding waiting for late ranks (on GPUs, including it)"
"""What the time of all-to-alls leaves out; a GPU's kernel itself awaits the others."""

STATES = {
    "waiting": "waiting for the run to begin",
    "recording": "recording",
    "closed": "ended: all ranks have closed their records, the merge is pending",
    "merged": "ended: the trace has been written",
}

BARS = "▁▂▃▄▅▆▇█"
BAR_CELLS = 32
"""Largest number of bars of a load; more experts are grouped."""

CELLS = ("expert", "rank")
"""What a load is of."""

UNAVAILABLE = "unavailable"


@tables_of.register
def tables(
    snapshot: Snapshot, *, experts: bool = False, most: int | None = None
) -> list[Table]:
    """Tabulate a snapshot: state of the run, then one row per layer.

    Parameters
    ----------
    snapshot
        Of :func:`moetraffic.watch_run`.
    experts
        Whether a table of its experts follows for each layer.
    most
        Largest number of layers in the table, those of the largest imbalance; None:
        all.
    """
    found = [_state(snapshot)]
    if snapshot.layers:
        found.append(_layers(snapshot, most))
    if experts:
        found += [_experts(each) for each in snapshot.layers if each.of]
    return found


def _state(snapshot: Snapshot) -> Table:
    steps = snapshot.iteration
    facts: dict[str, str] = {"state": STATES[snapshot.state]}
    if np.isfinite(snapshot.idle_s) and not snapshot.ended:
        facts["newest segment"] = f"{duration(snapshot.idle_s)} old"
    if snapshot.world:
        facts["ranks"] = _ranks(snapshot)
    if len(steps):
        number = f"{len(steps)} steps" if len(steps) > 1 else "1 step"
        if between := int(steps[-1] - steps[0]) + 1 - len(steps):
            number += f" of training; {between} between are evaluations or left out"
        ahead = f"; the furthest rank is {snapshot.ahead} ahead"
        facts["steps shown"] = f"{steps[0]} to {steps[-1]} ({number})" + ahead * (
            snapshot.ahead > 0
        )
        facts["iteration time (median)"] = _text(duration, _median(snapshot.duration_s))
        loss = mean(snapshot.loss)
        if np.isfinite(loss):
            facts["mean loss"] = f"{loss:.4f}"
        sent, local = mean(snapshot.bytes), mean(snapshot.local_bytes)
        facts["all-to-all bytes a step"] = _text(byte_size, sent)
        if np.isfinite(sent):
            facts["all-to-all bytes a step"] += (
                f", of which rank-local (self) traffic: {byte_size(local)}"
            )
        share = mean(snapshot.time_share)
        left_out = f", {WITHOUT_WAITING}" * bool(np.isfinite(share))
        facts["share of step time in all-to-alls"] = _share(share) + left_out
    return Table(
        title=str(snapshot.path),
        rows=list(facts.items()),
        notes=snapshot.notes,
    )


def _ranks(snapshot: Snapshot) -> str:
    seen = f"{len(snapshot.ranks)} of {snapshot.world} seen"
    closed = len(snapshot.closed)
    return seen + (f", {closed} closed" if closed and not snapshot.ended else "")


def _text(form: object, value: float) -> str:
    return form(value) if np.isfinite(value) else UNAVAILABLE  # type: ignore[operator]


def _share(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else UNAVAILABLE


def _layers(snapshot: Snapshot, most: int | None) -> Table:
    chosen = list(snapshot.layers)
    notes = []
    if most is not None and len(chosen) > most:
        skew = {each.layer: np.nan_to_num(mean(each.imbalance)) for each in chosen}
        chosen = sorted(chosen, key=lambda each: -skew[each.layer])[: max(1, most)]
        chosen.sort(key=lambda each: each.layer)
        notes.append(
            f"the {len(chosen)} of {len(snapshot.layers)} layers with the largest "
            "imbalance: select others with --layers"
        )
    columns = {
        "layer": "<",
        "max/mean": ".3f",
        "noise floor": ".3f",
        "load": "<",
        "hot": "<",
        "dropped": ".1%",
        "bytes a step": "bytes",
        "time share": "",
        "collapsed": "<",
    }
    rows = [_row(each) for each in chosen]
    return Table(
        columns=columns,
        rows=rows,
        notes=[*notes, *_legend(chosen)],
        styles={"COLLAPSED": "bold red"},
    )


def _row(each: LayerSnapshot) -> tuple[object, ...]:
    ratio = each.ratio
    hot = ", ".join(f"{cell}: {ratio[cell]:.2f}" for cell in each.hot)
    return (
        _name(each),
        mean(each.imbalance),
        mean(each.floor),
        bars(ratio),
        (("rank " if each.of == "rank" else "") + hot)
        if hot
        else "none" * bool(each.of),
        mean(each.dropped_share),
        mean(each.bytes),
        _share(mean(each.time_share)),
        _collapsed(each),
    )


def _name(each: LayerSnapshot) -> str:
    if each.layer < 0:
        return "unknown"
    return f"{each.layer}{' (inferred)' * (each.source == Source.INFERRED)}"


def _collapsed(each: LayerSnapshot) -> str:
    if each.collapse is None or each.collapse.collapsed is None:
        return "unknown"
    starved = f"{each.collapse.starved}/{each.collapse.experts} starved"
    if each.collapse.collapsed:
        return "COLLAPSED"
    return f"no, {starved}" if each.collapse.starved else "no"


def _legend(layers: Sequence[LayerSnapshot]) -> list[str]:
    notes = [
        "max/mean of each step's load: mean of the steps shown; noise floor: of a "
        "balanced router with as many tokens. Load: ▄ is the mean, █ twice that. Hot: "
        "largest loads over these steps, relative to the mean, at least 2 standard "
        "deviations above that floor; where unknown, they may be sampling noise. Time "
        "share: of the step in the layer's all-to-alls."
    ]
    bounds = [
        each.collapse.false_claims
        for each in layers
        if each.collapse and each.collapse.collapsed is not None
    ]
    if bounds:
        notes.append(
            f"Collapsed: at least {COLLAPSED:.0%} of the experts have less than "
            f"{STARVED:.0%} of the mean load in these steps; a balanced router with "
            f"independent tokens would appear so with a probability of at most "
            f"{max(*bounds, 1e-9):.1g} per layer."
        )
    return notes


def bars(ratio: Float64) -> str:
    """Draw loads relative to their mean as a line of bars: half height is the mean.

    Above 32 values, a bar is the largest of a group of neighbors.

    Examples
    --------
    >>> import numpy as np
    >>> bars(np.array([0.0, 1.0, 2.0, 9.0]))
    '▁▄██'
    """
    if not len(ratio) or not np.isfinite(ratio).all():
        return ""
    parts = np.array_split(ratio, min(BAR_CELLS, len(ratio)))
    heights = [int(np.clip(round(float(p.max()) * 4 - 1), 0, 7)) for p in parts]
    return "".join(BARS[height] for height in heights)


def _experts(each: LayerSnapshot) -> Table:
    total, ratio = each.total, each.ratio
    steps = max(1, len(each.load))
    what = "token copies" if each.of == "expert" else "bytes"
    share = total / max(1, int(total.sum()))
    return Table(
        title=f"layer {each.layer}",
        columns={each.of: "", f"{what} a step": ".1f", "share": ".2%", "x mean": ".3f"},
        rows=[
            (cell, total[cell] / steps, share[cell], ratio[cell])
            for cell in np.argsort(-total, kind="stable").tolist()
        ],
    )


def _median(values: Float64) -> float:
    """Return the median of the known values; NaN without any."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def line(snapshot: Snapshot) -> str:
    """Summarize a snapshot in one line, for a log."""
    if not len(snapshot.iteration):
        return f"{STATES[snapshot.state]}; " + "; ".join(
            snapshot.notes or ("no complete step yet",)
        )
    known = [each for each in snapshot.layers if np.isfinite(mean(each.imbalance))]
    worst = max(known, key=lambda each: mean(each.imbalance), default=None)
    parts = [
        f"step {snapshot.iteration[-1]}",
        f"{len(snapshot.ranks)} of {snapshot.world} ranks",
        f"iteration time {_text(duration, _median(snapshot.duration_s))} (median)",
    ]
    if worst is not None:
        floor = mean(worst.floor)
        known_floor = f"{floor:.3f}" if np.isfinite(floor) else UNAVAILABLE
        parts.append(
            f"largest max/mean of a step {mean(worst.imbalance):.3f} in layer "
            f"{worst.layer} (noise floor {known_floor})"
        )
    parts.append(
        f"all-to-all {_text(byte_size, mean(snapshot.bytes))} a step, "
        f"{_share(mean(snapshot.time_share))} of step time, {WITHOUT_WAITING}"
    )
    if collapsed := collapsed_layers(snapshot):
        parts.append(f"collapsed: layer {rank_span(collapsed)}")
    if snapshot.ended:
        parts.append(STATES[snapshot.state])
    return ", ".join(parts)


def collapsed_layers(snapshot: Snapshot) -> list[int]:
    """List the layers that have collapsed."""
    return [
        each.layer
        for each in snapshot.layers
        if each.collapse and each.collapse.collapsed
    ]


def summary(snapshot: Snapshot) -> dict[str, Any]:
    """Summarize a snapshot as plain data; of layers, means of the steps shown."""
    return {
        "path": str(snapshot.path),
        "state": snapshot.state,
        "world": snapshot.world,
        "ranks": snapshot.ranks,
        "closed": snapshot.closed,
        "ahead_steps": snapshot.ahead,
        "idle_s": snapshot.idle_s,
        "iterations": snapshot.iteration,
        "step_time_s": mean(snapshot.duration_s),
        "loss": mean(snapshot.loss),
        "bytes": mean(snapshot.bytes),
        "local_bytes": mean(snapshot.local_bytes),
        "all_to_all_time_share": mean(snapshot.time_share),
        "layers": [
            {
                "layer": each.layer if each.layer >= 0 else None,
                "source": each.source.name.lower(),
                "of": each.of,
                "load": each.total,
                "hot": each.hot,
                "collapse": each.collapse,
                **{
                    name: mean(getattr(each, name))
                    for name in (
                        *("imbalance", "floor", "floor_std", "dropped_share"),
                        *("bytes", "local_bytes", "time_share"),
                    )
                },
            }
            for each in snapshot.layers
        ],
        "notes": snapshot.notes,
    }


# ---- Prometheus --------------------------------------------------------------------

PREFIX = "moetraffic_watch"


Samples = Iterable[tuple[Mapping[str, object], float]]
"""Labels and value of each sample."""


def metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield metrics of a snapshot; those of layers are means of the steps shown.

    Names end in their unit, as Prometheus requires: ``_seconds``, ``_bytes``, and
    ``_total`` for counters.
    """

    def metric(name: str, help: str, samples: Samples) -> Metric:
        """Create a metric from those samples that are finite."""
        base = name.removesuffix("_total")
        kind = "gauge" if base == name else "counter"
        made = Metric(f"{PREFIX}_{base}", help, kind)
        for labels, value in samples:
            if math.isfinite(value):
                of = {"trace": snapshot.path.name, **labels}
                shown = {k: str(v) for k, v in of.items()}
                made.add_sample(f"{PREFIX}_{name}", shown, float(value))
        return made

    def gauge(name: str, help: str, value: float) -> Metric:
        """Create a metric with one sample."""
        return metric(name, help, [({}, value)])

    running = "1 while the run is recorded, 0 before and after."
    yield gauge("running", running, snapshot.state == "recording")
    yield gauge("world_ranks", "Ranks of the run.", snapshot.world)
    yield gauge("ranks", "Ranks whose segments are read.", len(snapshot.ranks))
    if len(snapshot.iteration):
        newest = "Iterations up to the last training step ended on all ranks seen."
        yield gauge("iterations_total", newest, snapshot.iteration[-1] + 1)
    yield gauge(
        "ahead_steps", "Steps of the furthest rank after these.", snapshot.ahead
    )
    age = "Time since the newest segment was written."
    yield gauge("idle_seconds", age, snapshot.idle_s)
    yield gauge("step_time_seconds", "Mean time of a step.", mean(snapshot.duration_s))
    yield gauge("loss", "Loss, mean of the ranks.", mean(snapshot.loss))
    sent = "Bytes of a step's all-to-alls, also rank-local."
    yield gauge("sent_bytes", sent, mean(snapshot.bytes))
    local = "Of these, bytes of a rank to itself."
    yield gauge("local_bytes", local, mean(snapshot.local_bytes))
    yield gauge(
        "all_to_all_time_ratio",
        "Share of a step in all-to-alls, mean of the ranks.",
        mean(snapshot.time_share),
    )
    known = [(_label(each), each) for each in snapshot.layers]
    for name, text, values in (
        ("imbalance_ratio", "Largest over mean load.", "imbalance"),
        ("imbalance_floor_ratio", "The same of a balanced router.", "floor"),
        ("dropped_ratio", "Share of token copies dropped.", "dropped_share"),
        ("sent_bytes", "Bytes of a step's all-to-alls, also rank-local.", "bytes"),
        ("local_bytes", "Of these, bytes of a rank to itself.", "local_bytes"),
        ("time_ratio", "Share of a step in all-to-alls.", "time_share"),
    ):
        yield metric(
            f"layer_{name}", text, [(of, mean(getattr(e, values))) for of, e in known]
        )
    yield metric(
        "layer_collapsed",
        "1 if the layer has collapsed, 0 if not; absent if unknown.",
        [
            (of, float(each.collapse.collapsed))
            for of, each in known
            if each.collapse and each.collapse.collapsed is not None
        ],
    )
    for what, text in (
        ("expert", "Load of an expert relative to the mean."),
        ("rank", "Dispatch bytes that a rank receives, relative to the mean."),
    ):
        yield metric(
            f"{what}_load_ratio",
            text,
            [
                ({**of, what: cell}, float(value))
                for of, each in known
                if each.of == what
                for cell, value in enumerate(each.ratio)
            ],
        )


def _label(each: LayerSnapshot) -> dict[str, object]:
    return {"layer": each.layer if each.layer >= 0 else "unknown"}


def write_snapshot_metrics(path: Path, snapshot: Snapshot) -> None:
    """Write the metrics of a snapshot for node exporter's textfile collector.

    It reads every ``*.prom`` in a folder periodically, as another user: the file is
    replaced atomically, and readable by all users.

    Raises
    ------
    MoetrafficError
        If the file cannot be written.

    References
    ----------
    Prometheus, "Exposition formats", text format 0.0.4; "Metric and label naming".
    """
    made = [metric for metric in metrics(snapshot) if metric.samples]
    registry: Any = SimpleNamespace(collect=lambda: made)
    with write_errors(path):
        write_whole(path, generate_latest(registry))
        path.chmod(0o644)


# ---- heatmaps ----------------------------------------------------------------------


def load_chart(snapshot: Snapshot) -> Chart | None:
    """Draw the load of all experts over the layers, relative to the mean.

    None if no layer has a known load.
    """
    panels = []
    for what in CELLS:
        mine = [each for each in snapshot.layers if each.of == what and len(each.total)]
        if not mine:
            continue
        cells = max(len(each.total) for each in mine)
        z = np.full((len(mine), cells), np.nan)
        for row, each in enumerate(mine):
            z[row, : len(each.total)] = each.ratio
        heat = Series(
            kind="heatmap",
            x=list(range(cells)),
            y=[f"layer {each.layer}" for each in mine],
            z=z,
            unit="load relative to the mean",
        )
        panels.append(
            Panel(name=(what,), x=Axis(label=what), y=Axis(label=""), series=(heat,))
        )
    if not panels:
        return None
    first, last = int(snapshot.iteration[0]), int(snapshot.iteration[-1])
    return Chart(
        key="load",
        title=f"Load by layer, steps {first} to {last}",
        source="Token copies that each expert is given, or bytes that each rank "
        "receives in dispatch where no router was observed, relative to the mean",
        panels=tuple(panels),
    )
