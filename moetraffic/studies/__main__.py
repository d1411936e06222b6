"""``python -m moetraffic.studies NAME``: published studies beside the time model.

``python -m moetraffic.studies tolerance`` trains on a lossy network instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from moetraffic.cli.show import AllTables, AsJson, Force, Only, Output, show
from moetraffic.files import validate_outputs
from moetraffic.report.console import terminal

from . import STUDIES, reproduce
from .tolerance import tolerance

app = typer.Typer(name="python -m moetraffic.studies", no_args_is_help=True)
app.command("tolerance")(tolerance)


def _command(*names: str) -> Callable[..., None]:
    """Make the command of some studies."""

    def study(
        charts: Annotated[
            Path | None, Option(help="Folder for pictures, made if it is missing.")
        ] = None,
        tables: AllTables = False,
        only: Only = None,
        as_json: AsJson = False,
        output: Output = None,
        force: Force = False,
    ) -> None:
        results = [reproduce(name) for name in names]
        if charts is not None:
            from moetraffic.report import figures
            from moetraffic.report.views.studies import study_charts

            charts.mkdir(exist_ok=True)
            for result in results:
                for name, chart in study_charts(result):
                    path = charts / f"{result.data['study']}-{name}.png"
                    validate_outputs((path,), (), force=force)
                    figures.save(chart, path)
        more: dict[str, Any] = {"tables": tables, "only": only, "as_json": as_json}
        show(*results, **more, output=output, force=force)

    study.__doc__ = f"Recompute {', '.join(names)}, and show the errors."
    return study


for _name in STUDIES:
    app.command(_name)(_command(_name))
app.command("all")(_command(*STUDIES))

if __name__ == "__main__":
    sys.exit(terminal.run(app, None, "python -m moetraffic.studies"))
