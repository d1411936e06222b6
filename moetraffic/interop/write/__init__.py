"""Export traces to the file formats of other tools."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from moetraffic.errors import TraceError
from moetraffic.trace import Trace

from . import chakra, flows, perfetto, tables
from .exporter import Exported, Exporter, ExportOptions

__all__ = [
    "EXPORTERS",
    "ExportOptions",
    "Exported",
    "Exporter",
    "export_trace",
    "exporter_named",
    "exporter_names",
]

ENTRY_POINTS = "moetraffic.exporters"

EXPORTERS: dict[str, Exporter] = {
    exporter.name: exporter
    for exporter in (
        *(perfetto.EXPORTER, flows.NCCL_TESTS, chakra.EXPORTER, flows.HTSIM),
        *(flows.HPCC, tables.EPLB, tables.CSV, tables.PARQUET, tables.NPZ),
    )
}
"""The built-in formats by name."""


def exporter_names() -> tuple[str, ...]:
    """Return the names of all export formats, built-in ones first."""
    others = set(entry_points(group=ENTRY_POINTS).names) - EXPORTERS.keys()
    return (*EXPORTERS, *sorted(others))


def exporter_named(name: str) -> Exporter:
    """Look up an export format by name."""
    if name in EXPORTERS:
        return EXPORTERS[name]
    for point in entry_points(group=ENTRY_POINTS).select(name=name):
        exporter = point.load()
        if not isinstance(exporter, Exporter):
            raise TraceError(
                f"an entry point in {ENTRY_POINTS!r} is an Exporter, but {point.value} "
                f"is a {type(exporter).__name__}: mend or remove that package"
            )
        return exporter
    raise TraceError(
        f"a format is one of {', '.join(exporter_names())}, not {name[:40]!r}: choose "
        "one with --to"
    )


def export_trace(
    trace: Trace | str | Path,
    output: str | Path,
    format: str,
    *,
    options: ExportOptions | None = None,
    force: bool = False,
) -> Exported:
    """Export a trace to the format of another tool.

    Parameters
    ----------
    trace
        Any.
    output
        A file, or, for formats of many files, a folder to create.
    format
        One of :func:`exporter_names`.
    options
        Selection of calls, and their pace.
    force
        Replace an existing output.

    Returns
    -------
    Exported
        The files, and descriptions of omitted content.

    Raises
    ------
    TraceError
        If the trace cannot be exported with these options; no file is written then.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from moetraffic.data import path
    >>> with TemporaryDirectory() as folder, Trace.open(path("golden.h5")) as trace:
    ...     one = ExportOptions(iterations=range(5, 6), layers=(3,), phase="dispatch")
    ...     done = export_trace(trace, f"{folder}/run.cm", "htsim", options=one)
    ...     print(done.files[0].read_text().splitlines()[0], len(done.lost) > 0)
    Nodes 2 True
    """
    return exporter_named(format).export(
        Trace.open(trace), Path(output), options or ExportOptions(), force=force
    )
