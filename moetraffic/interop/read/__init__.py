"""Import the files of other tools as traces: formats, detection, reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.trace.merge.merging import Merged
from moetraffic.trace.trace import Trace

from . import (
    chakra,
    execution_trace,
    flight_recorder,
    inspector,
    loads,
    router_trace,
    tables,
    torch_profile,
)
from .assemble import assemble, validate_options
from .files import opened, wrong
from .rows import Importer, ImportOptions

__all__ = ["FORMATS", "ImportOptions", "import_files", "import_trace"]

IMPORTERS: dict[str, Importer] = {
    importer.name: importer
    for importer in (
        torch_profile.IMPORTER,
        flight_recorder.IMPORTER,
        execution_trace.IMPORTER,
        router_trace.IMPORTER,
        inspector.IMPORTER,
        loads.IMPORTER,
        tables.MATRIX,
        tables.IMPORTER,
        chakra.IMPORTER,
    )
}
"""The formats by name, in the order in which they are tried on a file."""

FORMATS = {name: importer.what for name, importer in IMPORTERS.items()}
"""Descriptions of the formats by name."""

BEGINNING = 1 << 16  # characters
MOST_FILES = 100_000


def detect(path: Path) -> str:
    """Detect the format of a file; "" if it is unknown."""
    with opened(path) as text:
        beginning = text.read(BEGINNING).lstrip()
    formats = (n for n, one in IMPORTERS.items() if one.matches(path, beginning))
    return next(formats, "")


def choose(paths: Sequence[Path], format: str) -> tuple[str, list[Path]]:
    """List the files to import, and detect their common format."""
    check_choice("a format", format, ("", *FORMATS), TraceError)
    files: list[Path] = []
    formats: set[str] = set()
    for path in paths:
        if path.is_dir():  # whose files of other formats are ignored
            inside = sorted(file for file in path.rglob("*") if file.is_file())
            if len(inside) > MOST_FILES:
                raise TraceError(
                    f"{path} holds {len(inside)} files, more than {MOST_FILES}: name "
                    "them"
                )
            for file in inside:
                own = "" if file.name.startswith(".") else detect(file)
                if own and own == (format or own):
                    files.append(file)
                    formats.add(own)
            continue
        own = detect(path)
        if not path.stat().st_size and not own:
            raise wrong(path, "it is empty", "name a file with a run")
        if not (format or own):
            raise _unknown(path)
        files.append(path)
        formats.add(format or own)
    if not files:
        what = f" of format {format}" if format else " of a known format"
        raise TraceError(
            f"there is no file{what} in {', '.join(map(str, paths))[:200]}: the "
            f"formats are {', '.join(FORMATS)}"
        )
    if len(formats) > 1:
        raise TraceError(
            f"files of one format are imported at a time, but these are of "
            f"{' and '.join(sorted(formats))}: choose with --from"
        )
    return formats.pop(), list(dict.fromkeys(files))


def _unknown(path: Path) -> TraceError:
    """Create the error for a file of no known format."""
    with opened(path) as text:
        if "algbw" in text.read(BEGINNING):
            return TraceError(
                f"{path.name} has measurements of nccl-tests, which are no traffic: "
                f"moetraffic bench --show {path} reads them"
            )
    try:
        with Trace.open(path):
            return TraceError(
                f"{path.name} is a moetraffic trace, which needs no import: use it as "
                f"it is (moetraffic info {path})"
            )
    except TraceError:
        return TraceError(
            f"the format of {path.name} is not known: name its format with --from "
            f"({', '.join(FORMATS)}), or write its transfers as a CSV table with the "
            f"columns {', '.join(tables.EXCHANGES)}"
        )


def import_files(
    paths: Sequence[Path],
    *,
    format: str = "",
    options: ImportOptions | None = None,
    keep: bool = True,
) -> tuple[str, Merged]:
    """Read the files of all ranks, in one format, into a trace with diagnostics.

    Parameters and errors are those of :func:`import_trace`.  Returns the format, and
    the trace with descriptions of missing calls, and of contradictions between calls or
    ranks.
    """
    options = options or ImportOptions()
    format, files = choose(paths, format)
    validate_options(options)
    contents = IMPORTERS[format].read(files, options)
    return format, assemble(contents, files, options, keep=keep)


def import_trace(
    paths: Path | str | Sequence[Path | str],
    *,
    format: str = "",
    options: ImportOptions | None = None,
    keep: bool = False,
) -> Trace:
    """Convert files of other tools to a trace.

    Parameters
    ----------
    paths
        Files of all ranks of one run, or folders of them.
    format
        One of :data:`FORMATS`; detected if empty.
    options
        Properties of the run that the files do not contain.
    keep
        Return the trace even if files contradict each other.

    Returns
    -------
    Trace
        In memory; ``trace.save(path)`` writes it.

    Raises
    ------
    TraceError
        If a file is damaged, of another format or of another run, or if files
        contradict each other and ``keep`` is false.
    """
    files = [paths] if isinstance(paths, Path | str) else paths
    return import_files(
        [Path(p) for p in files], format=format, options=options, keep=keep
    )[1].trace
