"""Report estimated iteration times as tables, plain data and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.patterns.layouts.parallelism import RECOMPUTE
from moetraffic.patterns.time_model import (
    MODEL_ERROR,
    Configuration,
    Estimate,
    Search,
    Sensitivity,
    Sweep,
)
from moetraffic.patterns.time_model.overlap import WINDOWS
from moetraffic.patterns.time_model.search import COLUMNS
from moetraffic.patterns.values import anywhere
from moetraffic.report.chart import LINE_COLORS, OTHER_COLOR, Axis, Chart, Panel, Series
from moetraffic.report.trained import batch_words, layout_notes, model_words
from moetraffic.tables import Table, plain
from moetraffic.units import byte_size, duration

TERMS = {
    "compute": "compute",
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "pp": "pipeline",
    "dp": "data parallel",
    "bubble": "bubble",
    "overhead": "overheads",
    "optimizer": "optimizer",
}
"""Terms of the iteration time, by attribute name of Estimate."""

KINDS_OF = {
    **{kind: (kind,) for kind in ("cp", "ep", "pp")},
    "tp": ("tp", "ends"),
    "dp": ("dp", "edp", "embedding"),
}
"""Kinds of traffic of each term that is communication."""

SHARES = {
    "comm_share": "communication share of T_iter (R_comm)",
    "waiting_share": "communication and bubble share",
    "bubble_share": "bubble share of T_iter",
    "bubble_of_ideal": "bubble / ideal time, (p-1)/(v m)",
}

WORDS = {
    **{"pp": "PP", "tp": "TP", "dp": "DP", "ep": "EP", "cp": "CP"},
    **{"virtual": "virtual stages", "zero": "ZeRO", "micro_batch": "micro-batch"},
}
"""Words for sizes in the name of a configuration, by field."""

LEFT_OUT = {"ep": 1, "cp": 1, "virtual": 1, "zero": 0}
"""Sizes that the words for all configurations leave out."""

MEMORY = ("weights", "gradients", "optimizer", "activations")
"""Parts of the memory that a GPU needs."""

LEAST_STATED = 0.01  # of an iteration, from which other terms than these are stated
LEAST_WAIT = 0.005  # of an iteration, from which a wait for launches is stated
LEAST_HEAD = 0.02  # of an iteration, from which a wait for the output layer is stated

COLORS = {
    "compute": LINE_COLORS[0],
    "tp": LINE_COLORS[1],
    "cp": LINE_COLORS[5],
    "ep": LINE_COLORS[3],
    "pp": LINE_COLORS[4],
    "dp": LINE_COLORS[2],
    "bubble": "#D0D0D0",
    "overhead": OTHER_COLOR,
    "optimizer": "#000000",
}


def as_dict(found: Estimate) -> dict[str, Any]:
    """Convert an estimate to plain data: seconds, bytes and shares; arrays as lists."""
    told = {
        "iteration_s": found.iteration,
        **{f"{name}_s": getattr(found, name) for name in TERMS},
        "launches_s": found.launches,
        "hidden_s": found.hidden,
        "hidden": hidden_rows(found),
        **{name: getattr(found, name) for name in SHARES},
        "tokens_s": found.tokens_s,
        "model_flops_gpu": found.flops_gpu,
        "sent_bytes": dict(found.sent),
        "busiest_rank_bytes": dict(found.wire),
        "calls": {kind: found.calls(kind) for kind in found.wire},
        "effective_bytes_s": {kind: found.bandwidth([kind]) for kind in found.wire},
        "memory_bytes": {
            name: getattr(found.memory, name) for name in (*MEMORY, "total")
        },
        "sound": found.sound,
        "fits": found.fits,
    }
    return dict(plain(told))


def summary(found: Estimate, source: str) -> list[str]:
    """Summarize one configuration's iteration time and memory, the verdict first.

    ``source`` states the model, the system, and how its compute is estimated.
    """
    layout, batch = layout_words(found.config)
    if not found.sound:
        return [f"Impossible: {layout}, {batch}.", f"Of: {source}."]
    parts = {
        words: value
        for name, words in TERMS.items()
        if (value := float(getattr(found, name)))
    }
    largest = max(parts, key=lambda words: parts[words])
    gpus = int(np.ravel(found.config.world)[0])
    others = [
        f"{words} {parts[words] / float(found.iteration):.1%}, "
        for words in ("compute", "optimizer", "overheads")
        if words != largest
        and parts.get(words, 0.0) >= LEAST_STATED * float(found.iteration)
    ]
    whole, waits = float(found.iteration), float(found.launches / found.iteration)
    fits = "fits" if found.fits else "does not fit"
    lines = [
        f"Iteration time T_iter {duration(whole)}, {float(found.tokens_s):,.0f} "
        f"tokens/s, {float(found.flops_gpu) / 1e12:.1f} model TFLOP/s/GPU: "
        f"{batch}.",
        f"Time: largest term {largest}, {parts[largest] / whole:.1%} of T_iter; "
        f"{''.join(others)}communication {float(found.comm_share):.1%}, bubble "
        f"{float(found.bubble_share):.1%}.",
        f"Memory: {_memory(found)}: {fits}; {model_words(found.config)}.",
        f"Layout: {gpus:,} GPU{'s' * (gpus > 1)}, {layout}; {source}.",
    ]
    if further := layout_notes(found.config):
        lines.append(f"Also: {', '.join(further)}.")
    if (head := float(found.head_share)) >= LEAST_HEAD:
        lines[1] = (
            f"{lines[1][:-1]} ({head:.1%} waiting for the last stage, which also has "
            "the output layer)."
        )
    limit = (
        "Launches: kernel launches by the host limit the layers (the GPU waits "
        f"{waits:.1%} of T_iter for them: a larger micro-batch would use it)."
    )
    return [*lines[:2], *[limit] * (waits >= LEAST_WAIT), *lines[2:]]


def _memory(found: Estimate, at: Any = ()) -> str:
    """State the memory that one configuration needs, and that a GPU has."""
    room = float(np.asarray(found.memory_room)[at])
    limit = f" of {byte_size(room)} usable" * bool(np.isfinite(room))
    return f"{byte_size(float(np.asarray(found.memory.total)[at]))}{limit} per GPU"


def hidden_rows(found: Estimate) -> list[dict[str, Any]]:
    """List what hides behind which compute: kind, seconds and share of the kind."""
    return [
        {
            "kind": kind,
            "behind": WINDOWS[window],
            "hidden_s": time,
            "share": np.divide(
                time,
                found.communication[kind],
                out=np.zeros(np.shape(time)),
                where=found.communication[kind] > 0,
            ),
        }
        for (kind, window), time in found.overlapped.items()
    ]


def table(found: Estimate, title: str) -> Table:
    """Tabulate the terms of one configuration's iteration time."""
    whole = float(found.iteration)
    sent = {
        term: (
            sum(float(found.wire[kind]) for kind in kinds),
            sum(float(found.calls(kind)) for kind in kinds),
            float(found.bandwidth(kinds)) / 1e9,
        )
        for term, kinds in KINDS_OF.items()
    }
    none = (None, None, None)
    rows: list[tuple[object, ...]] = [
        (words, value, value / whole, *sent.get(name, none))
        for name, words in TERMS.items()
        if (value := float(getattr(found, name)))
    ]
    hidden = float(found.hidden)
    if hidden:
        rows.append(("overlapped with compute", -hidden, None, *none))
        rows += [
            (f"  {kind} behind {WINDOWS[window]}", -float(time), None, *none)
            for (kind, window), time in found.overlapped.items()
            if time > 0
        ]
    rows.append(("iteration", whole, 1.0, *none))
    rows += [
        (words, None, float(getattr(found, name)), *none)
        for name, words in SHARES.items()
    ]
    needed = found.memory
    rows.append(("memory", None, None, needed.total, None, None))
    rows += [
        (f"  {name}", None, None, getattr(needed, name), None, None) for name in MEMORY
    ]
    return Table(
        title=title,
        columns={
            **{"term": "", "time": "s", "share of T_iter": ".1%"},
            "bytes sent, or memory, per rank": "bytes",
            **{"calls": ",.0f", "effective GB/s": ".3g"},
        },
        rows=rows,
        notes=[
            f"memory: {_memory(found)}; {float(found.tokens_s):,.0f} tokens/s; "
            f"{float(found.flops_gpu) / 1e12:.1f} model TFLOP/s per GPU",
            "bytes and calls: of each term the rank that sends most of it",
            "effective GB/s: bytes sent or waited for over the time, with latency",
        ],
    )


def several(
    found: Estimate,
    names: Sequence[str],
    head: str,
    title: str,
    beside: Mapping[str, tuple[str, npt.ArrayLike]] | None = None,
) -> Table:
    """Tabulate estimates ``[n]``, a row each.

    ``head`` is the heading of the rows' names; ``beside`` are additional columns:
    format and values by name.
    """
    shape = found.sound.shape
    columns: dict[str, tuple[str, npt.ArrayLike]] = {
        "T_iter": ("s", found.iteration),
        "tokens/s": (",.0f", found.tokens_s),
        "R_comm": (".1%", found.comm_share),
        "bubble": (".1%", found.bubble_share),
        "memory": ("bytes", np.broadcast_to(found.memory.total, shape)),
        "fits": ("", found.fits),
        **(beside or {}),
    }
    values = [np.asarray(one).tolist() for _, one in columns.values()]
    blank = (None,) * (len(columns) - 1)
    return Table(
        title=title,
        columns={head: "", **{name: form for name, (form, _) in columns.items()}},
        rows=[
            (name, *(row if sound else ("impossible", *blank)))
            for name, sound, *row in zip(names, found.sound, *values, strict=False)
        ],
    )


def range_sentences(found: Estimate, names: Sequence[str], *about: str) -> list[str]:
    """State the fastest and the slowest of estimates ``[n]``, how many fit, and what
    they are ``about``."""
    sound = np.flatnonzero(found.sound)
    if not len(sound):
        return [f"None of {len(found.sound)} configurations is possible.", *about]
    times = np.asarray(found.iteration)[sound]
    low, high = (int(sound[at]) for at in (np.argmin(times), np.argmax(times)))
    share = np.asarray(found.comm_share)
    ends = (
        f"{duration(float(found.iteration[at]))} with {names[at]} (communication "
        f"{share[at]:.1%})"
        for at in (low, high)
    )
    return [
        f"Iteration time T_iter from {' to '.join(ends)}; "
        f"{int(np.sum(found.fits))} of {len(found.sound)} fit into memory.",
        *(f"{one}." for one in about),
    ]


def search_sentences(found: Search, batch: str, title: str) -> list[str]:
    """State the fastest configuration, its rate, and how many could be ranked."""
    best, at = found.estimate, found.order[0]
    experts = anywhere(best.config.sizes.experts)
    layout = _stated(_words(found.rows(1)[0]), experts=experts)
    return [
        f"Iteration time T_iter {duration(float(best.iteration[at]))}, "
        f"{best.tokens_s[at]:,.0f} tokens/s, communication {best.comm_share[at]:.1%} "
        f"of it; batch: {batch}.",
        f"Layout: {layout}; memory {_memory(best, at)}; {model_words(best.config)}.",
        *(f"{note[:1].upper()}{note[1:]}." for note in search_notes(found)),
        f"{title}.",
    ]


def search_notes(found: Search) -> list[str]:
    """State how many configurations were tried, and how many cannot be ranked."""
    return [
        f"{found.tried:,} configurations tried, {len(found.estimate.iteration):,} are "
        f"valid for this model, {len(found.order):,} of these fit into memory",
        f"{found.unranked:,} of these, the fastest included, are within "
        f"{MODEL_ERROR:.0%} of its time, the model's error on published tables: they "
        "cannot be ranked"
        if found.unranked > 1
        else f"All others take over {MODEL_ERROR:.0%} longer than the fastest, more "
        "than the model's error on published tables",
    ]


def sweep_table(found: Sweep, names: Sequence[str], title: str) -> Table:
    """Tabulate a parameter sweep, with speedup and efficiency."""
    beside = {
        "speedup": (".2f", found.speedup),
        "efficiency": (".1%", found.efficiency),
    }
    return several(found.estimate, names, "size", title, beside)


def search_table(found: Search, number: int, title: str) -> Table:
    """Tabulate the best configurations of a search."""
    names = ("pp", "tp", "dp", "ep", "cp", "v", "b", "ZeRO")
    best = found.estimate
    rows = []
    for at, row in zip(found.order[:number], found.rows(number), strict=True):
        values = list(row.values())
        rows.append(
            (
                *values[:8],
                *(RECOMPUTE[int(values[8])], bool(values[9]), best.iteration[at]),
                *(best.tokens_s[at], best.comm_share[at], best.bubble_share[at]),
                best.memory.total[at],
            )
        )
    return Table(
        title=title,
        columns={
            **dict.fromkeys(names, ".0f"),
            **{"recompute": "", "SP": "", "T_iter [s]": ".4g", "tokens/s": ",.0f"},
            **{"R_comm": ".1%", "bubble": ".1%", "memory": "bytes"},
        },
        rows=rows,
        notes=search_notes(found),
    )


def search_names(found: Search, number: int) -> tuple[list[str], str]:
    """Describe each of the best configurations by what distinguishes it.

    Returns
    -------
    names : list of str
        One line per configuration.
    common : str
        What all of them have in common.
    """
    rows = [_words(row) for row in found.rows(number)]
    same = {key for key in rows[0] if len({row[key] for row in rows}) == 1}
    names = [
        ", ".join(filter(None, (row[key] for key in row if key not in same)))
        for row in rows
    ]
    experts = anywhere(found.estimate.config.sizes.experts)
    shared = {key: word for key, word in rows[0].items() if key in same}
    return names, _stated(shared, experts=experts)


AGAIN = {
    "none": "",
    "selective": "selective recomputation",
    "full": "full recomputation",
    "modules": "recomputation of modules",
}


def layout_words(config: Configuration) -> tuple[str, str]:
    """Describe one configuration as those of a search; and its batch and sequence."""
    row = {name: float(np.ravel(getattr(config, name))[0]) for name in COLUMNS}
    words = _stated(_words(row), experts=anywhere(config.sizes.experts))
    sizes = (config.accumulation, config.micro_batch, config.dp, config.sizes.source)
    return words, batch_words(*(float(np.ravel(n)[0]) for n in sizes))


def _stated(words: Mapping[str, str], *, experts: bool) -> str:
    """Join words, without those of sizes that are as usual; EP is always stated of
    models with experts."""
    left_out = {key: f"{WORDS[key]} {size}" for key, size in LEFT_OUT.items()}
    if experts:
        del left_out["ep"]
    return ", ".join(w for key, w in words.items() if w and w != left_out.get(key))


def _words(row: Mapping[str, Any]) -> dict[str, str]:
    again = RECOMPUTE[int(row["recompute"])]
    return {
        **{name: f"{word} {row[name]:.0f}" for name, word in WORDS.items()},
        "recompute": AGAIN[again],
        "sequence_parallel": "sequence parallel" if row["sequence_parallel"] else "",
    }


def sensitivity_sentence(found: Sensitivity) -> str:
    """State the input that changes the iteration time most."""
    most = {name: float(np.abs(v).max()) for name, v in found.elasticities.items()}
    name = max(most, key=lambda name: most[name])
    return (
        f"T_iter changes most with {name}: by {most[name]:.2g}% for 1% of it, of "
        f"{len(most)} inputs."
    )


def sensitivity_table(found: Sensitivity, title: str) -> Table:
    """Tabulate elasticities by magnitude, then the effect of conventions."""
    order = sorted(found.elasticities.items(), key=lambda pair: -abs(float(pair[1])))
    return Table(
        title=title,
        columns={"input": "", "change of T_iter": ">"},
        rows=[
            *((n.replace("_", " "), f"{float(v):+.3f}% per 1%") for n, v in order),
            *((f"with {n}", f"{float(v):+.1%}") for n, v in found.conventions.items()),
        ],
    )


def figure(
    found: Estimate,
    names: Sequence[str],
    *,
    at: npt.ArrayLike | None = None,
    shares: bool = False,
    title: str = "Iteration time by term",
    source: str = "",
) -> Chart:
    """Draw the time terms of configurations as stacked bars, one bar per name.

    ``at`` are the indices of the flattened estimates to draw (None: all); with
    ``shares``, bars are percents of their sums instead of seconds.
    """

    def flat(value: npt.ArrayLike) -> npt.NDArray[np.float64]:
        every = np.broadcast_to(np.asarray(value, float), found.iteration.shape).ravel()
        chosen = every if at is None else every[np.asarray(at)]
        return np.asarray(np.nan_to_num(chosen))

    places = np.arange(len(names))
    parts = {term: flat(getattr(found, term)) for term in TERMS}
    total = np.sum(list(parts.values()), axis=0)
    unit = np.where(total > 0, total, 1) / 100 if shares else np.ones(len(names))
    left = np.zeros(len(names))
    series = []
    for term, words in TERMS.items():
        value = parts[term] / unit
        if value.any():
            series.append(
                Series(
                    kind="bars",
                    x=value,
                    y=places,
                    base=left,
                    name=words,
                    color=COLORS[term],
                    width=0.72,
                )
            )
            left = left + value
    whole = flat(found.iteration)
    if flat(found.hidden).any():
        series.append(
            Series(
                kind="points",
                x=whole / unit,
                y=places,
                name="T_iter with overlap",
                color="#000000",
                symbol="tick",
                size=18,
            )
        )
    times = [
        f"{name}: {t:.4g} s" if t else f"{name}: impossible"
        for name, t in zip(names, whole.tolist(), strict=True)
    ]
    label = "share of all terms' time [%]" if shares else "iteration time [s]"
    return Chart(
        title=title,
        source=source,
        panels=(
            Panel(
                x=Axis(label=label, from_zero=True),
                y=Axis(names=tuple(times), reverse=True),
                series=tuple(series),
            ),
        ),
        height=190 + 32 * len(names),
    )
