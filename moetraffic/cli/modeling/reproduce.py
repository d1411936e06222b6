"""``moetraffic reproduce``: published studies, recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.cli.output import json_text, make_folder, present
from moetraffic.files import write_text
from moetraffic.report.console.options import (
    AllTables,
    AsJson,
    Force,
    only_option,
    option,
    parts_of,
)

ALL = "all"


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="apnet24, sigmetrics24, merced, gpt350m, sc21, iteration_times or all."
        ),
    ],
    output: Path | None = option(
        None, "Folder for JSON and pictures.", "-o", "--output"
    ),
    force: Force = False,
    tables: AllTables = False,
    only: str | None = only_option(None, ["the study"]),
    as_json: AsJson = False,
) -> None:
    """Recompute the tables of a published study and show the errors.

    Example: moetraffic reproduce merced -o merced
    """
    from moetraffic.patterns.rules import choose
    from moetraffic.studies import reproduce as computed
    from moetraffic.studies import there

    choose("a study", study, (*there(), ALL))
    names = there() if study == ALL else (study,)
    chosen = parts_of(only, names)
    found = [computed(name) for name in names]
    if output is not None:
        make_folder(output, [f"{name}.json" for name in names], force=force)
    from moetraffic.report.results import study as report

    told = [report.as_dict(one) for one in found]
    written: list[Path] = []
    if output is not None:
        from moetraffic.report import figures
        from moetraffic.report.results.pattern import stripes

        for one, said in zip(found, told, strict=True):
            path = output / f"{one.name}.json"
            write_text(path, json_text(said) + "\n")
            written.append(path)
            for table in one.tables:
                if report.drawable(table):
                    picture = output / f"{one.name}-{report.slug(table.title)}.png"
                    written.append(figures.save(report.figure(one, table), picture))
            # its figure is a heatmap, not a table
            for name, drawn in (stripes() if one.name == "apnet24" else {}).items():
                picture = output / f"{one.name}-{name}.png"
                written.append(figures.save(drawn, picture))
    texts = [line for one in found for line in report.sentences(one)]
    data = told if study == ALL else told[0]
    parts = {one.name: report.tables(one) for one in found}
    present(
        *(data, *texts),
        as_json=as_json,
        parts=parts,
        only=chosen,
        tables=tables,
        written=written,
    )
