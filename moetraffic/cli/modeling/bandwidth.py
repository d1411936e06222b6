"""``moetraffic bandwidth``: bandwidths of measured collectives."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.cli.output import Printing, printed
from moetraffic.errors import AnalysisError
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import Force, Plot, option
from moetraffic.tables import Table
from moetraffic.units import duration, message_size, three_digits

from .assumptions import BIG_RED_200

PRESETS = ("platforms", "protocols")
PARTS = ("fits", *PRESETS)


@printed(PARTS, plot=Plot)
def bandwidth(
    table: Annotated[
        Path | None,
        typer.Argument(
            help=f"File of moetraffic bench, or {BIG_RED_200}.",
            show_default="lists the presets",
        ),
    ] = None,
    collective: str | None = option(
        None, "Collective whose time and bandwidth are estimated."
    ),
    ranks: int = option(2, "Number of ranks of --collective.", min=1),
    size: int = option(
        "1M",
        "Size of --collective in bytes; K, M, G are powers of 1024.",
        read=message_size,
    ),
    span: int | None = option(
        None, "Number of nodes of --collective.", shown="as measured", min=1
    ),
    place: str = option(
        "out", "Measurements out of place or in place.", choices=("out", "in")
    ),
    force: Force = False,
    *,
    printing: Printing,
) -> None:
    """Show measured collectives with fits, residuals and interpolated bandwidths.

    Example: moetraffic bandwidth bench.csv --collective all_reduce --size 300000
    """
    validate_outputs((printing.plot,), (table,), force=force, error=AnalysisError)
    if table is None:
        if collective is not None:
            raise AnalysisError(
                f"{collective} is interpolated in a table of measurements, but none is "
                f"named: name its file, or {BIG_RED_200}"
            )
        _presets(printing)
        return
    from moetraffic.patterns.bandwidth.measurements import big_red_200, read_table
    from moetraffic.report.results import bandwidth as report

    shipped = str(table) == BIG_RED_200
    if shipped and place == "in":
        raise AnalysisError(
            f"{BIG_RED_200} was measured out of place, but --place is in: leave it out"
        )
    found = big_red_200() if shipped else read_table(table, place=place)
    if not len(found):
        raise AnalysisError(
            f"{table} has no measurement {place} of place: choose another --place"
        )
    data: dict[str, Any] = {"curves": report.records(found)}
    shown = report.sentences(found)
    if collective is not None:
        got = found.effective(collective, ranks, size, span=span)
        time_s, busbw_gbs = float(got.time_s), float(got.bytes_s) / 1e9
        beyond = (
            ""
            if got.inside
            else report.beyond_words(found, collective, ranks, size, span=span)
        )
        how, known = report.origin_words(
            found, collective, ranks, size, span=span, beyond=beyond
        )
        data["answer"] = {
            "collective": collective,
            "ranks": ranks,
            "size_bytes": size,
            "time_us": time_s * 1e6 if known else None,
            "busbw_gbs": busbw_gbs if known else None,
            "measured_around": bool(got.inside),
        }
        value = f"{duration(time_s)}, busbw {three_digits(busbw_gbs)} GB/s ({how})"
        if not known:
            value = f"unknown ({how}): measure with this size and ranks"
        shown.insert(0, f"{collective} of {size:,} B on {ranks} ranks: {value}.")
    chart = report.figure(found, str(table))
    parts = {"fits": [report.sheet(found)]}
    printing.present(data, *shown, parts=parts, chart=chart)


def _presets(printing: Printing) -> None:
    from moetraffic.patterns.bandwidth.platforms import platforms, protocols

    found = {
        "platforms": [asdict(p) for p in platforms().values()],
        "protocols": [asdict(p) for p in protocols().values()],
    }
    parts = {
        part: [
            Table(
                title=part.capitalize(),
                columns=["", *(row["name"] for row in rows)],
                rows=[
                    [field.replace("_", " "), *(row[field] for row in rows)]
                    for field in list(rows[0])[1:]
                ],
            )
        ]
        for part, rows in found.items()
    }
    summary = [
        f"{part.capitalize()}: {', '.join(row['name'] for row in rows)}."
        for part, rows in found.items()
    ]
    printing.present(found, *summary, parts=parts)
