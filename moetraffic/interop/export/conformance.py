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
from .exporter import Exporter
from .options import ExportOptions

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
        files, lost = writing.write(exporter, trace, output, options, force=False)
        assert set(folder.iterdir()) == before | {output}, (
            "nothing is written but the output"
        )
        assert files, "something is written"
        for sentence in lost:
            assert re.fullmatch(r"\S.*", sentence), (
                f"what is lost is said in sentences of one line, not {sentence!r}"
            )
        for file in files if exporter.folder else ():
            assert re.fullmatch(exporter.files, file.name), (
                f"a file is named as {exporter.files}, not {file.name}"
            )
        made.append([f.read_bytes() for f in files])
    assert made[0] == made[1], "the same trace and options give the same bytes"
    _refuses(exporter, trace, folder, options)


def _refuses(
    exporter: Exporter, trace: Trace, folder: Path, options: ExportOptions
) -> None:
    output = folder / f"nothing{exporter.suffix}"
    nothing = replace(options, iterations=NOWHERE)
    there = folder / f"1{exporter.suffix}"
    before = set(folder.iterdir())
    for target, asked, what in (
        (output, nothing, "a selection without a call"),
        (there, options, "an output that is there"),
    ):
        said = _refusal(exporter, trace, target, asked)
        assert said is not None, f"{what} is refused with a TraceError"
        assert "\n" not in said, "an error is one sentence"
    assert set(folder.iterdir()) == before, "after an error nothing is left behind"
    writing.write(exporter, trace, there, options, force=True)


def _refusal(
    exporter: Exporter, trace: Trace, output: Path, options: ExportOptions
) -> str | None:
    try:
        writing.write(exporter, trace, output, options, force=False)
    except TraceError as error:
        return str(error)
    return None
