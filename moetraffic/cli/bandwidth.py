"""``moetraffic bandwidth``: what a table of measured collectives says, and between."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import AnalysisError
from moetraffic.trace.hdf5.durable import validate_outputs

from .choices import picture
from .output import console, print_json

BIG_RED_200 = "big-red-200"


def bandwidth(
    table: Annotated[
        Path | None,
        typer.Argument(
            help=f"What moetraffic bench wrote, or {BIG_RED_200}.",
            show_default="the presets are listed",
        ),
    ] = None,
    collective: Annotated[
        str | None, typer.Option(help="Ask for this one's time and bandwidth.")
    ] = None,
    ranks: Annotated[int, typer.Option(help="On so many ranks.")] = 2,
    size: Annotated[int, typer.Option(help="Of so many bytes.")] = 1 << 20,
    span: Annotated[
        int | None, typer.Option(help="On so many nodes.", show_default="what there is")
    ] = None,
    place: Annotated[str, typer.Option(help="Measured out of or in place.")] = "out",
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Picture to draw, PNG.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read measured collectives: fits, residuals, and what lies between sizes.

    Example: moetraffic bandwidth bench.csv --collective all_reduce --size 300000
    """
    validate_outputs((plot,), (table,), force=force, error=AnalysisError)
    if place not in ("out", "in"):
        raise AnalysisError(f"a place is out or in, not {place!r}: choose one")
    if table is None:
        _presets(as_json)
        return
    from moetraffic.patterns.measurements import big_red_200, read_table
    from moetraffic.report import bandwidth as report

    shipped = str(table) == BIG_RED_200
    found = big_red_200() if shipped else read_table(table, place=place)
    if not len(found):
        raise AnalysisError(
            f"{table} has no measurement {place} of place: choose another --place"
        )
    answer: dict[str, Any] | None = None
    if collective is not None:
        got = found.effective(collective, ranks, size, span=span)
        answer = {
            "collective": collective,
            "ranks": ranks,
            "size_bytes": size,
            "time_us": float(got.time_s) * 1e6,
            "busbw_gbs": float(got.bytes_s) / 1e9,
            "measured_around": bool(got.inside),
        }
    if plot is not None:
        from moetraffic.report import figures

        figures.save(report.figure(found, str(table)), plot)
    if as_json:
        told: dict[str, Any] = {"curves": report.records(found)}
        print_json(told if answer is None else {**told, "answer": answer})
        return
    console.print(report.sheet(found))
    if answer is not None:
        how = "between measurements" if answer["measured_around"] else "extrapolated"
        console.print(
            f"{collective} of {size} B on {ranks} ranks: {answer['time_us']:.4g} us, "
            f"{answer['busbw_gbs']:.4g} GB/s ({how})"
        )
    if plot is not None:
        console.print(f"{plot}: written")


def _presets(as_json: bool) -> None:
    from moetraffic.patterns.platforms import platforms, protocols

    told = {
        "platforms": [asdict(p) for p in platforms().values()],
        "protocols": [asdict(p) for p in protocols().values()],
    }
    if as_json:
        print_json(told)
        return
    from rich import box
    from rich.table import Table

    for name, rows in told.items():
        made = Table(title=name, title_justify="left", box=box.SIMPLE)
        for row in [{"name": ""}, *rows]:
            made.add_column(str(row["name"]), no_wrap=True)
        for field in list(rows[0])[1:]:
            values = (row[field] for row in rows)
            cells = ("" if v != v or v == 0 else str(v) for v in values)
            made.add_row(field.replace("_", " "), *cells)
        console.print(made)
