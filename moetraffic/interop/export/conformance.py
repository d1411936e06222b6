"""Conformance checks for exporters, built-in and third-party.

Call :func:`check_exporter` in a test, with a trace that the format can represent::

    from moetraffic.interop.export import check_exporter

    def test_mine(trace, tmp_path) -> None:
        check_exporter(EXPORTER, trace, tmp_path)
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from moetraffic.errors import TraceError
from moetraffic.trace import Trace

from . import exporter as writing
from .exporter import Exporter, ExportOptions

NOWHERE = range(1 << 39, (1 << 39) + 1)  # an iteration that no trace contains


def check_exporter(
    exporter: Exporter,
    trace: Trace,
    folder: Path,
    *,
    options: ExportOptions | None = None,
) -> None:
    """Check that an exporter meets the requirements of :class:`.exporter.Exporter`.

    Parameters
    ----------
    exporter
        The exporter to check.
    trace
        A trace that the exporter can write with the options.
    folder
        Existing, empty folder for the output.
    options
        Selection of calls to export.

    Raises
    ------
    AssertionError
        At the first violated requirement, with its description.
    """
    options = options or ExportOptions()
    for what in ("name", "what", "readers", "limits"):
        assert getattr(exporter, what).strip(), f"an exporter says its {what}"
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", exporter.name), (
        f"a name is lower case with hyphens, not {exporter.name!r}"
    )
    assert bool(exporter.suffix) != exporter.folder, (
        "a format is a file with a suffix, or a folder whose files it names"
    )
    made = []
    for number in (1, 2):
        output = folder / f"{number}{exporter.suffix}"
        before = set(folder.iterdir())
        done = writing.write(exporter, trace, output, options, force=False)
        assert set(folder.iterdir()) == before | {output}, (
            "nothing is written but the output"
        )
        assert done.files, "something is written"
        for sentence in done.lost:
            assert re.fullmatch(r"\S.*", sentence), (
                f"what is lost is said in sentences of one line, not {sentence!r}"
            )
        for file in done.files if exporter.folder else ():
            assert re.fullmatch(exporter.files, file.name), (
                f"a file is named as {exporter.files}, not {file.name}"
            )
        made.append([f.read_bytes() for f in done.files])
    assert made[0] == made[1], "the same trace and options give the same bytes"
    nothing, before = replace(options, iterations=NOWHERE), set(folder.iterdir())
    first, other = (folder / f"{name}{exporter.suffix}" for name in ("1", "nothing"))
    for output, asked, what in (
        (other, nothing, "a selection without a call"),
        (first, options, "an output that is there"),
    ):
        said = ""
        try:
            writing.write(exporter, trace, output, asked, force=False)
        except TraceError as error:
            said = str(error)
        assert said, f"{what} is refused with a TraceError"
        assert "\n" not in said, "an error is one sentence"
    assert set(folder.iterdir()) == before, "after an error nothing is left behind"
    writing.write(exporter, trace, first, options, force=True)
