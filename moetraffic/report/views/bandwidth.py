"""Bandwidths of measured collectives, as ``moetraffic bench`` measures and shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.patterns.bandwidth import (
    USABLE,
    BandwidthTable,
    big_red_200,
    read_table,
)
from moetraffic.result import Result
from moetraffic.units import duration, three_digits

SHIPPED = {"big-red-200": big_red_200}
"""Tables of measurements that are shipped, by name."""


def fit_rows(table: BandwidthTable) -> list[dict[str, Any]]:
    """List range, highest busbw and fit by Hockney's model of each measured curve."""
    rows = []
    for (collective, platform, protocol, span), curves in table.curves.items():
        for curve in curves:
            fit, busbw = curve.fit, curve.factor * curve.size / curve.time_s / 1e9
            best = int(np.argmax(busbw))
            rows.append(
                {
                    "collective": collective,
                    "platform": platform,
                    "protocol": protocol,
                    "ranks": curve.ranks,
                    "span": span,
                    "from_bytes": int(curve.size[0]),
                    "to_bytes": int(curve.size[-1]),
                    "busbw_gbs": float(busbw[best]),
                    "busbw_at": int(curve.size[best]),
                    "alpha_us": fit.model.alpha_s * 1e6 if fit else None,
                    "beta_gbs": fit.model.beta_bytes_s / 1e9 if fit else None,
                    "fit_error": fit.median if fit else None,
                }
            )
    return rows


def show_bandwidth(
    table: str | Path,
    collective: str | None = None,
    *,
    ranks: int = 2,
    size: int = 1 << 20,
    span: int | None = None,
) -> Result:
    """Tabulate measured collectives; with a name, estimate the time of one.

    Parameters
    ----------
    table
        File of ``moetraffic bench``, or a name of :data:`SHIPPED`.
    collective, ranks, size, span
        Collective whose time is estimated, with its ranks, bytes and hosts.

    Raises
    ------
    AnalysisError
        If there is no such table, or it lacks the collective.
    """
    shipped = SHIPPED.get(str(table))
    measured = shipped() if shipped else read_table(table)
    rows = fit_rows(measured)
    sentences = list(fit_sentences(rows))
    data: dict[str, Any] = {"table": str(table)}
    if collective is not None:
        answer = measured.effective(collective, ranks, size, span=span)
        time_s, busbw_gbs = float(answer.time_s), float(answer.bytes_s) / 1e9
        how = "estimated beyond the measured range"
        if answer.inside:
            how = "by measurements of these and other sizes"
        data |= {"collective": collective, "ranks": ranks, "size_bytes": size}
        data |= {"time_us": time_s * 1e6, "busbw_gbs": busbw_gbs, "estimate": how}
        sentences.insert(
            0,
            f"{collective} of {size:,} B on {ranks} ranks: {duration(time_s)}, busbw "
            f"{three_digits(busbw_gbs)} GB/s, {how}.",
        )
    return Result(
        verb="bench",
        head=f"{table}: {len(measured):,} measured collectives",
        tables={"fits": rows},
        screen=("fits",),
        verdict=tuple(sentences[:5]),
        data=data,
    )


def fit_sentences(rows: list[dict[str, Any]]) -> Iterator[str]:
    """State whether the fits can be used."""
    errors = [row["fit_error"] for row in rows if row["fit_error"] is not None]
    if not errors:
        return
    poor = sum(error > USABLE for error in errors)
    yield (
        "Fits T = alpha steps + wire bytes / beta have a median error of "
        f"{np.median(errors):.0%} at sizes left out"
        + f"; {poor} of {len(errors)} are not usable" * bool(poor)
        + "."
    )
