"""An analysis as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from moetraffic.analysis import Analysis, ExchangeAnalysis, Subject, stage_means
from moetraffic.analysis.forecast.usefulness import Verdict, sentence
from moetraffic.analysis.rhythm.source_statistics import OnOffStatistics
from moetraffic.units import rank_span

from .occupation import table as occupation_table
from .plain_data import mean

FIGURES = {
    "normalized_entropy": 1,
    "max_over_mean": 1,
    "cv": 0,
    "gini": 0,
    "sparsity": 0,
}
"""Measures that are shown, and what they are where all is even."""

SHOWN_LAYERS = 6
"""Of more layers than these, so many at even distances are shown."""

TOLERANCE = 0.2
"""Relative error of the verdicts that are shown."""


def tables(analysis: Analysis) -> Group:
    """All statistics as tables.

    Of many layers some are shown; plain data and records have them all.
    """
    parts: list[Any] = []
    shown = _shown(analysis)
    if any(s.curves for e in shown for s in e.subjects):
        parts.append(_skew_table(shown))
    verdicts = [v for e in shown for s in e.subjects for v in _verdicts(s)]
    if any(not v.reason for v in verdicts):
        parts.append(_forecast_table(shown))
    if any(e.convergence for e in shown):
        parts.append(_convergence_table(shown))
    if any(e.network or e.complexity for e in shown):
        parts.append(_network_table(shown))
    if analysis.beats.found:
        parts.append(_rhythm_table(analysis.beats))
    if analysis.occupation is not None:
        parts.append(occupation_table(analysis.occupation))
    parts += [Text(line) for line in sentences(analysis)]
    if len(shown) < len(analysis.exchanges):
        parts.append(
            Text(
                f"{len(shown)} of {len(analysis.exchanges)} layers and groups are "
                "shown: --json and -o have them all",
                style="yellow",
            )
        )
    parts += [Text(f"note: {note}", style="yellow") for note in analysis.notes]
    return Group(*parts)


def _shown(analysis: Analysis) -> list[ExchangeAnalysis]:
    every = analysis.exchanges
    if len(every) <= SHOWN_LAYERS:
        return list(every)
    at = np.linspace(0, len(every) - 1, SHOWN_LAYERS).round().astype(int)
    return [every[i] for i in at]


def _verdicts(subject: Subject) -> tuple[Verdict, ...]:
    return () if subject.forecasts is None else subject.forecasts.verdicts


def _skew_table(exchanges: list[ExchangeAnalysis]) -> Table:
    table = _table("Skew, and the noise floor of a perfectly balanced gate")
    for name in ("layer", "ranks", "of", "measure (even)"):
        table.add_column(name)
    for name in ("early", "middle", "late", "floor", "z", "slope/100 it", "trend p"):
        table.add_column(name, justify="right")
    for exchange in exchanges:
        for subject in exchange.subjects:
            for measure, ideal in FIGURES.items():
                curve = subject.curves.get(measure)
                if curve is None or (measure == "sparsity" and not curve.values.any()):
                    continue
                floor, z = "", ""
                if curve.floor is not None:
                    floor = _figure(mean(curve.floor.mean))
                    z = _z(mean(curve.floor.z_score(curve.values)))
                table.add_row(
                    str(exchange.layer),
                    rank_span(exchange.ranks),
                    subject.name.replace("_", " "),
                    f"{measure.replace('_', ' ')} ({ideal})",
                    *map(_figure, stage_means(curve.values)),
                    floor,
                    z,
                    _figure(100 * float(curve.trend.slope), "+.4f"),
                    _figure(float(curve.trend.p), ".2g"),
                )
    return table


def _forecast_table(exchanges: list[ExchangeAnalysis]) -> Table:
    table = _table(
        "Forecasts: share of the bytes placed within 20%, and skill over the last value"
    )
    # room is scarce: ranks are said where they differ
    several = len({tuple(e.ranks) for e in exchanges}) > 1
    for name in ("layer", *(("ranks",) if several else ()), "of"):
        table.add_column(name)
    table.add_column("ahead, it.", justify="right")
    table.add_column("by", no_wrap=True)
    for name in (
        "within 20%",
        "last value",
        "ceiling",
        "skill",
        "interval",
        "NMSE",
        "limit",
        "MAPE",
        "floor",
    ):
        table.add_column(name, justify="right", no_wrap=name == "interval")
    for exchange in exchanges:
        for subject in exchange.subjects:
            forecasts = subject.forecasts
            if forecasts is None:
                continue
            for horizon in forecasts.horizons:
                verdict = horizon.verdict
                if verdict.reason:
                    continue
                at = int(np.argmin([abs(t - TOLERANCE) for t in verdict.tolerances]))
                best = next(s for s in horizon.scores if s.forecaster == horizon.best)
                limit = float("nan")
                if horizon.horizon == 1 and subject.limits is not None:
                    limit = subject.limits.pooled_nmse
                interval = ""
                if np.isfinite(verdict.skill_low):
                    interval = f"{verdict.skill_low:+.2f} to {verdict.skill_high:+.2f}"
                table.add_row(
                    str(exchange.layer),
                    *((rank_span(exchange.ranks),) if several else ()),
                    subject.name.replace("_", " "),
                    str(horizon.horizon),
                    verdict.forecaster,
                    _figure(verdict.within[at], ".1%"),
                    _figure(verdict.unchanged[at], ".1%"),
                    _figure(verdict.ceiling[at], ".1%"),
                    _figure(verdict.skill, "+.2f"),
                    interval,
                    _figure(best.nmse, ".3f"),
                    _figure(limit, ".3f"),
                    _figure(best.mape, ".1%"),
                    _figure(horizon.mape_floor, ".1%"),
                )
    return table


def _convergence_table(exchanges: list[ExchangeAnalysis]) -> Table:
    table = _table("Convergence, and how long the hot set stays")
    for name in ("layer", "of"):
        table.add_column(name)
    for name in (
        "settled at it.",
        "changes at it.",
        "half-life, it.",
        "step over counting",
        "hot set kept",
        "at random",
        "by counting",
    ):
        table.add_column(name, justify="right")
    for exchange in exchanges:
        both = exchange.convergence
        if both is None:
            continue
        for name, course, hot in (
            ("load", both.load, both.hot_experts),
            ("matrix", both.cells, both.hot_cells),
        ):
            changed = course.changed_at.tolist()
            table.add_row(
                str(exchange.layer),
                name,
                str(course.settled_at) if course.settled_at >= 0 else "not",
                ", ".join(map(str, changed[:4])) + ("..." if changed[4:] else ""),
                _figure(float(course.decay.half_life), ".1f"),
                _figure(course.beyond_counting, ".2f"),
                _figure(float(hot.overlap[0]) if len(hot.overlap) else np.nan, ".1%"),
                _figure(hot.random_overlap, ".1%"),
                _figure(hot.counting_overlap, ".1%"),
            )
    return table


def _network_table(exchanges: list[ExchangeAnalysis]) -> Table:
    table = _table("On a network: means over the iterations")
    for name in ("layer", "ranks"):
        table.add_column(name)
    for name in (
        "line efficiency",
        "bottleneck MB",
        "inter-host (even)",
        "flows a NIC",
        "their entropy, bits",
        "byte entropy, bits",
        "largest 10% carry",
        "T",
        "NT",
        "T x NT",
    ):
        table.add_column(name, justify="right")
    for exchange in exchanges:
        net, packets = exchange.network, exchange.complexity
        if net is None and packets is None:
            continue
        of_net = [""] * 7
        if net is not None:
            of_net = [
                _figure(mean(net.line_efficiency), ".3f"),
                _figure(mean(net.bottleneck_bytes) / 1e6, ".3f"),
                _with(
                    _figure(mean(net.inter_host), ".1%"), net.inter_host_uniform, ".1%"
                ),
                _figure(net.nic_flows, ".1f"),
                _figure(net.nic_flow_entropy_bits, ".2f"),
                _figure(net.nic_byte_entropy_bits, ".2f"),
                _figure(net.elephant_share, ".1%"),
            ]
        of_packets = [""] * 3
        if packets is not None:
            of_packets = [
                _figure(packets.temporal, ".3f"),
                _figure(packets.non_temporal, ".3f"),
                _figure(packets.product, ".3f"),
            ]
        table.add_row(
            str(exchange.layer), rank_span(exchange.ranks), *of_net, *of_packets
        )
    return table


def _rhythm_table(beats: OnOffStatistics) -> Table:
    table = _table("On-off rhythm: " + (beats.about or "all-to-alls"))
    table.add_column("of", no_wrap=True)
    for name in (
        "duty",
        "bursts",
        "burst ms (CV)",
        "gap ms (CV)",
        "period ms",
        "ACF at it",
        "cycle ms",
        "alike",
        "jitter",
        "peak/mean",
        "steady p",
    ):
        table.add_column(name, justify="right")
    for beat in beats.found:
        found = beat.rhythm
        steady = found.length_steady.p if found.length_steady else float("nan")
        table.add_row(
            beat.name,
            _figure(found.duty, ".1%"),
            str(found.bursts),
            _with(_figure(found.burst_ns / 1e6, ".2f"), found.burst_cv, ".2f"),
            _with(_figure(found.gap_ns / 1e6, ".2f"), found.gap_cv, ".2f"),
            _figure(found.period_ns / 1e6, ".1f"),
            _figure(found.strength, ".2f"),
            _figure(found.cycle_ns / 1e6, ".1f"),
            _figure(found.likeness, ".2f"),
            _figure(found.jitter, ".1%"),
            _figure(found.peak_to_mean, ".1f"),
            _figure(steady, ".2g"),
        )
    return table


def sentences(analysis: Analysis) -> list[str]:
    """What a scheduler can count on, of the first exchange, and within an iteration."""
    lines: list[str] = []
    for exchange in analysis.exchanges[:1]:
        for subject in exchange.subjects:
            if subject.name in ("demand", "wire"):
                lines += [
                    f"Layer {exchange.layer}: {sentence(v, tolerance=TOLERANCE)}"
                    for v in _verdicts(subject)
                ]
        if exchange.convergence is not None:
            both = exchange.convergence
            lines.append(
                f"Layer {exchange.layer}, the loads: {both.load.why}; the matrix: "
                f"{both.cells.why}."
            )
    for sight in analysis.sights[:SHOWN_LAYERS]:
        lines.append(
            "From the first dispatch: " + sentence(sight.verdict, tolerance=TOLERANCE)
        )
    return lines


def _z(value: float) -> str:
    """Standard deviations above a floor: beyond a thousand, how many says nothing."""
    if abs(value) >= 1000:
        return ">1000" if value > 0 else "<-1000"
    return _figure(value, ".1f")


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=None, header_style="bold", padding=(0, 1)
    )


def _figure(value: float, form: str = ".4f") -> str:
    return format(value, form) if np.isfinite(value) else ""


def _with(figure: str, spread: float, form: str) -> str:
    """A figure and, in brackets, another; what is not known is blank."""
    other = _figure(spread, form)
    return f"{figure} ({other})" if figure and other else figure


def replay_table(told: Mapping[str, Any]) -> Table:
    """What a replay measured, from its summary as plain data."""
    table = Table.grid(padding=(0, 2))
    times, rates = told["time_us"], told["busbw_gbs"]
    verified = "every size and byte verified" if told["verified"] else "not verified"
    table.add_row(
        "replay", f"{told['operations']} all-to-alls on {told['backend']}, {verified}"
    )
    table.add_row("bytes", f"{told['total_bytes']:,}, as many as the trace has")
    table.add_row("wall time", f"{told['wall_s']:.2f} s, as soon as possible")
    table.add_row(
        "an operation",
        f"p50 {times['p50']:.0f}, p90 {times['p90']:.0f}, p99 {times['p99']:.0f} us",
    )
    if rates is not None:  # on one rank nothing crosses a network
        table.add_row("busbw", f"p50 {rates['p50']:.3f}, max {rates['max']:.3f} GB/s")
    return table
