"""Tabulate and draw snapshots of a run in progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moetraffic.analysis.load import COLLAPSED, MOST_FALSE, STARVED
from moetraffic.arrays import Float64
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
    result = [_state(snapshot)]
    if snapshot.layers:
        result.append(_layers(snapshot, most))
    if experts:
        result += [_experts(layer) for layer in snapshot.layers if layer.of]
    return result


def _state(snapshot: Snapshot) -> Table:
    steps = snapshot.iteration
    facts: dict[str, str] = {"state": STATES[snapshot.state]}
    if np.isfinite(snapshot.idle_s) and not snapshot.ended:
        facts["newest record"] = f"{duration(snapshot.idle_s)} old"
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
    if np.isfinite(snapshot.log_bytes):
        facts["log bytes a step"] = byte_size(snapshot.log_bytes)
    return Table(
        title=str(snapshot.path),
        rows=list(facts.items()),
        notes=snapshot.notes,
    )


def _ranks(snapshot: Snapshot) -> str:
    seen = f"{len(snapshot.ranks)} of {snapshot.world} seen"
    closed = len(snapshot.closed)
    return seen + (f", {closed} closed" if closed and not snapshot.ended else "")


def _text(form: Callable[[float], str], value: float) -> str:
    return form(value) if np.isfinite(value) else UNAVAILABLE


def _share(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else UNAVAILABLE


def _layers(snapshot: Snapshot, most: int | None) -> Table:
    chosen = list(snapshot.layers)
    notes = []
    if most is not None and len(chosen) > most:
        skew = {layer.layer: np.nan_to_num(mean(layer.imbalance)) for layer in chosen}
        chosen = sorted(chosen, key=lambda layer: -skew[layer.layer])[: max(1, most)]
        chosen.sort(key=lambda layer: layer.layer)
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
    rows = [_row(layer) for layer in chosen]
    return Table(
        columns=columns,
        rows=rows,
        notes=[*notes, *_legend(chosen)],
        styles={"COLLAPSED": "bold red"},
    )


def _row(layer: LayerSnapshot) -> tuple[object, ...]:
    ratio = layer.ratio
    hot = ", ".join(f"{cell}: {ratio[cell]:.2f}" for cell in layer.hot)
    return (
        _name(layer),
        mean(layer.imbalance),
        mean(layer.floor),
        bars(ratio),
        (("rank " if layer.of == "rank" else "") + hot)
        if hot
        else "none" * bool(layer.of),
        mean(layer.dropped_share),
        mean(layer.bytes),
        _share(mean(layer.time_share)),
        _collapsed(layer),
    )


def _name(layer: LayerSnapshot) -> str:
    if layer.layer < 0:
        return "unknown"
    return f"{layer.layer}{' (inferred)' * (layer.source == Source.INFERRED)}"


def _collapsed(layer: LayerSnapshot) -> str:
    if layer.collapsed is None:
        return "unknown"
    if layer.collapsed:
        return "COLLAPSED"
    starved = f", {layer.starved}/{layer.load.shape[1]} starved"
    return "no" + starved * (layer.starved > 0)


def _legend(layers: Sequence[LayerSnapshot]) -> list[str]:
    notes = [
        "max/mean of each step's load: mean of the steps shown; noise floor: of a "
        "balanced router with as many tokens. Load: ▄ is the mean, █ twice that. Hot: "
        "largest loads over these steps, relative to the mean, at least 2 standard "
        "deviations above that floor; where unknown, they may be sampling noise. Time "
        "share: of the step in the layer's all-to-alls."
    ]
    if any(layer.collapsed is not None for layer in layers):
        notes.append(
            f"Collapsed: at least {COLLAPSED:.0%} of the experts have less than "
            f"{STARVED:.0%} of the mean load in these steps; unknown where a balanced "
            "router with independent tokens would appear so with a probability above "
            f"{MOST_FALSE:.1%}."
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


def _experts(layer: LayerSnapshot) -> Table:
    total, ratio = layer.total, layer.ratio
    steps = max(1, len(layer.load))
    what = "token copies" if layer.of == "expert" else "bytes"
    share = total / max(1, int(total.sum()))
    return Table(
        title=f"layer {layer.layer}",
        columns={
            layer.of: "",
            f"{what} a step": ".1f",
            "share": ".2%",
            "x mean": ".3f",
        },
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
    known = [layer for layer in snapshot.layers if np.isfinite(mean(layer.imbalance))]
    worst = max(known, key=lambda layer: mean(layer.imbalance), default=None)
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
    return [layer.layer for layer in snapshot.layers if layer.collapsed]


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
        "log_bytes": snapshot.log_bytes,
        "iterations": snapshot.iteration,
        "step_time_s": mean(snapshot.duration_s),
        "loss": mean(snapshot.loss),
        "bytes": mean(snapshot.bytes),
        "local_bytes": mean(snapshot.local_bytes),
        "all_to_all_time_share": mean(snapshot.time_share),
        "layers": [
            {
                "layer": layer.layer if layer.layer >= 0 else None,
                "source": layer.source.name.lower(),
                "of": layer.of,
                "load": layer.total,
                "hot": layer.hot,
                "collapsed": layer.collapsed,
                "starved": layer.starved,
                **{
                    name: mean(getattr(layer, name))
                    for name in (
                        *("imbalance", "floor", "floor_std", "dropped_share"),
                        *("bytes", "local_bytes", "time_share"),
                    )
                },
            }
            for layer in snapshot.layers
        ],
        "notes": snapshot.notes,
    }


def load_chart(snapshot: Snapshot) -> Chart | None:
    """Draw the load of all experts over the layers, relative to the mean.

    None if no layer has a known load.
    """
    panels = []
    for what in CELLS:
        layers = [
            layer for layer in snapshot.layers if layer.of == what and len(layer.total)
        ]
        if not layers:
            continue
        cells = max(len(layer.total) for layer in layers)
        z = np.full((len(layers), cells), np.nan)
        for row, layer in enumerate(layers):
            z[row, : len(layer.total)] = layer.ratio
        heat = Series(
            kind="heatmap",
            x=list(range(cells)),
            y=[f"layer {layer.layer}" for layer in layers],
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
