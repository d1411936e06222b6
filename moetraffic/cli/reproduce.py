"""``moetraffic reproduce``: published studies, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import MoetrafficError
from moetraffic.trace.hdf5.durable import validate_folder

from .output import console, json_text, print_json

ALL = "all"


def reproduce(
    study: Annotated[
        str,
        typer.Argument(help="apnet24, sigmetrics24, merced, gpt350m, sc21, or all."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for JSON and pictures."),
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Write into a folder that holds files of these names.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute a published study's tables again: published, ours, and the error.

    Example: moetraffic reproduce merced -o merced
    """
    from moetraffic.studies import reproduce as computed
    from moetraffic.studies import there

    names = there() if study == ALL else (study,)
    if output is not None:
        _refuse(output, names, force)
    found = [computed(name) for name in names]
    from moetraffic.report import study as report

    told = [report.as_dict(one) for one in found]
    written: list[Path] = []
    if output is not None:
        from moetraffic.report import figures
        from moetraffic.report.stripes import stripes

        output.mkdir(exist_ok=True)
        for one, said in zip(found, told, strict=True):
            path = output / f"{one.name}.json"
            path.write_text(json_text(said) + "\n", encoding="utf-8")
            written.append(path)
            for table in one.tables:
                if report.drawable(table):
                    picture = output / f"{one.name}-{report.slug(table.title)}.png"
                    written.append(figures.save(report.figure(one, table), picture))
            # its figure is a heatmap, not a table
            for name, drawn in (stripes() if one.name == "apnet24" else {}).items():
                picture = output / f"{one.name}-{name}.png"
                written.append(figures.save(drawn, picture))
    if as_json:
        print_json(told if study == ALL else told[0])
        return
    for one in found:
        console.print(*report.tables(one))
    if written:
        console.print(f"{output}: {', '.join(path.name for path in written)}")


def _refuse(output: Path, names: tuple[str, ...], force: bool) -> None:
    """Refuse a folder that cannot be written, or whose files would be lost."""
    if output.exists() and not output.is_dir():
        raise MoetrafficError(f"{output} is no folder: choose another with -o")
    validate_folder(output.absolute().parent, error=MoetrafficError)
    lost = [n for n in names if any(output.glob(f"{n}.json"))]
    if lost and not force:
        raise MoetrafficError(
            f"{output} holds {lost[0]}.json, which is not overwritten: choose another "
            "folder with -o, or give --force"
        )
