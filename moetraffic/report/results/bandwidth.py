"""Report measured collective bandwidths: Hockney fits as a table, curves as a chart."""

from __future__ import annotations

from typing import Any

import numpy as np

from moetraffic.patterns.bandwidth import BandwidthTable, Curve
from moetraffic.patterns.bandwidth.hockney import USABLE
from moetraffic.report.chart import Axis, Chart, Panel, Series, line_colors
from moetraffic.tables import Table
from moetraffic.units import byte_size, three_digits


def records(table: BandwidthTable) -> list[dict[str, Any]]:
    """List each curve's collective, message sizes, Hockney constants and residuals."""
    found = []
    for (collective, platform, protocol, span), curves in table.curves.items():
        for curve in curves:
            fit, best = curve.fit, int(np.argmax(_busbw(curve)))
            found.append(
                {
                    "collective": collective,
                    "platform": platform,
                    "protocol": protocol,
                    "span": span,
                    "ranks": curve.ranks,
                    "sizes": len(curve.size),
                    "smallest_bytes": int(curve.size[0]),
                    "largest_bytes": int(curve.size[-1]),
                    "busbw_gbs": float(_busbw(curve)[best]),
                    "busbw_bytes": int(curve.size[best]),
                    "alpha_us": fit.model.alpha_s * 1e6 if fit else None,
                    "beta_gbs": fit.model.beta_bytes_s / 1e9 if fit else None,
                    "residuals": fit.residual.tolist() if fit else None,
                    "left_out": fit.left_out.tolist() if fit else None,
                    "outlier_bytes": curve.size[fit.outlier].astype(int).tolist()
                    if fit
                    else None,
                }
            )
    return found


MOST_LINES = 5  # collectives in the summary


def sentences(table: BandwidthTable) -> list[str]:
    """State the highest busbw of each collective, and the residual of its fits."""
    lines = []
    for name, curves in _by_name(table).items():
        best = max(curves, key=lambda one: one["busbw_gbs"])
        words = _fit_words(_median_error(curves))
        fit = f"; {words}" * bool(words)
        lines.append(
            f"{name}: busbw up to {three_digits(best['busbw_gbs'])} GB/s, on "
            f"{best['ranks']} ranks at {best['busbw_bytes']:,} B{fit}."
        )
    rest = len(lines) - MOST_LINES
    more = [f"{rest} more collectives are in the table."] if rest > 0 else []
    return lines[:MOST_LINES] + more


def _by_name(table: BandwidthTable) -> dict[str, list[dict[str, Any]]]:
    """List the records of each collective, platform and protocol."""
    of: dict[str, list[dict[str, Any]]] = {}
    for one in records(table):
        where = (one[name] for name in ("collective", "platform", "protocol"))
        of.setdefault(" ".join(filter(None, where)), []).append(one)
    return of


def _median_error(curves: list[dict[str, Any]]) -> float:
    """Return the median error of fits at sizes left out; NaN if there is no fit."""
    left = [abs(x) for one in curves for x in one["left_out"] or ()]
    return float(np.median(left)) if left else np.nan


def _fit_words(error: float) -> str:
    """State a median error, and whether the fits are usable; "" if it is unknown."""
    words = f"fit: median error {error:.0%} at sizes left out of it"
    return f"{'no usable ' * (error > USABLE)}{words}" * (not np.isnan(error))


def origin_words(
    table: BandwidthTable,
    collective: str,
    ranks: int,
    size: int,
    *,
    span: int | None,
    beyond: str,
) -> tuple[str, bool]:
    """State how the time of a size comes from a table, or why it is unknown.

    ``span`` is the number of nodes; None: any.  ``beyond`` are the
    :func:`beyond_words` of a point outside the measured range, "" inside.  The second
    value is whether the time is known: without a usable fit only that of a measured
    size is.
    """
    if any(
        curve.ranks == ranks and size in curve.size
        for curve in _of(table, collective, span)
    ):
        return "measured", True
    error = _median_error(
        [
            one
            for one in records(table)
            if one["collective"] == collective and span in (None, one["span"])
        ]
    )
    if error > USABLE:
        return _fit_words(error), False
    return (f"extrapolated to {beyond}" if beyond else "interpolated"), True


def _of(table: BandwidthTable, collective: str, span: int | None) -> list[Curve]:
    """List the curves of a collective on a number of nodes; None: any."""
    return [
        curve
        for (of, _, _, nodes), several in table.curves.items()
        for curve in several
        if of == collective and span in (None, nodes)
    ]


def beyond_words(
    table: BandwidthTable, collective: str, ranks: int, size: int, *, span: int | None
) -> str:
    """State how far ranks and bytes are outside the measured range of a collective."""
    curves = _of(table, collective, span)
    nearest = min(curves, key=lambda curve: abs(np.log(curve.ranks / ranks)))
    measured = [curve.ranks for curve in curves]
    words = []
    for asked, every, what in (
        (ranks, measured, "number of ranks"),
        (size, nearest.size, "size"),
    ):
        for end, edge, outside in (
            ("largest", max(every), asked > max(every)),
            ("smallest", min(every), asked < min(every)),
        ):
            if outside:
                over = asked / edge
                times = f"{over:,.0f}" if over >= 100 else f"{over:.3g}"
                words.append(f"{times} times the {end} {what}")
    return f"{' and '.join(words)} measured" if words else "other sizes than measured"


def sheet(table: BandwidthTable) -> Table:
    """Tabulate the Hockney fits of measured collectives, a row for each curve."""
    rows = []
    for one in records(table):
        where = (one[name] for name in ("collective", "platform", "protocol"))
        residuals, outliers = one["left_out"], one["outlier_bytes"] or ()
        rows.append(
            (
                " ".join(word for word in where if word),
                *(one["ranks"], one["span"], one["smallest_bytes"]),
                *(one["largest_bytes"], one["busbw_gbs"], one["alpha_us"]),
                *(one["beta_gbs"], residuals and np.median(np.abs(residuals))),
                ", ".join(map(byte_size, outliers)),
            )
        )
    return Table(
        title="Measured collectives and their fit T = alpha steps + wire bytes/beta",
        columns={
            **{"collective": "", "ranks": "", "nodes": ""},
            **{"from": "bytes", "to": "bytes", "busbw [GB/s]": ".4g"},
            **{"alpha [us]": ".4g", "beta [GB/s]": ".4g"},
            **{"held-out residual": ".1%", "outliers": "<"},
        },
        rows=rows,
        notes=[
            "busbw: that of the size with the highest; held-out residual: median "
            "residual of a size that was not fitted"
        ],
    )


def figure(table: BandwidthTable, source: str = "") -> Chart:
    """Draw bus bandwidth over message size: measurements as points, fits as lines.

    A collective without a usable fit has points alone.
    """
    errors = {name: _median_error(of) for name, of in _by_name(table).items()}
    unfit = {name: error for name, error in errors.items() if error > USABLE}
    named = [
        (" ".join(t for t in (c, platform, protocol) if t), span, curve)
        for (c, platform, protocol, span), curves in table.curves.items()
        for curve in curves
    ]
    series = []
    for (name, span, curve), color in zip(named, line_colors(len(named)), strict=True):
        node = f"{span} node{'s' if span > 1 else ''}"
        series.append(
            Series(
                kind="points",
                x=curve.size,
                y=_busbw(curve),
                name=f"{name}, {curve.ranks} ranks, {node}",
                color=color,
            )
        )
        if curve.fit is None or name in unfit:
            continue
        sizes = np.geomspace(curve.size[0], curve.size[-1], 200)
        time = curve.model.time_s(curve.collective, curve.ranks, curve.even(sizes))
        busbw = curve.factor * sizes / time / 1e9
        series.append(Series(x=sizes, y=busbw, color=color, width=1))
    drawn = any(one.kind == "line" for one in series)
    notes = [source, "lines: Hockney's fit" * drawn]
    notes += [f"{name} has {_fit_words(error)}" for name, error in unfit.items()]
    return Chart(
        title="Bus bandwidth over message size",
        source="; ".join(filter(None, notes)),
        panels=(
            Panel(
                x=Axis(label="size [B]", log=True),
                y=Axis(label="bus bandwidth [GB/s]", log=True),
                series=tuple(series),
            ),
        ),
        height=500,
    )


def _busbw(curve: Curve) -> Any:
    return curve.factor * curve.size / curve.time_s / 1e9
