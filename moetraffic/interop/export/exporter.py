"""Exporter interface, and atomic writing of exports.

A third party adds a format with an entry point in the group ``moetraffic.exporters``
that is an :class:`Exporter`, and tests it with :func:`.conformance.check_exporter`::

    [project.entry-points."moetraffic.exporters"]
    mine = "my_package:EXPORTER"
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moetraffic.errors import TraceError
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import (
    remedy,
    remove_folder,
    sync_folder,
    validate_folder,
    validate_output,
)

from .options import ExportOptions

Write = Callable[[Trace, Path, ExportOptions], Sequence[str]]
"""Function that writes a trace to a new file, or into an empty folder.

Returns descriptions of omitted or unsupported content, a sentence each.
"""


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """Export format: its name, description and write function."""

    name: str
    what: str  # description of the content
    readers: str  # tools that read the format
    limits: str  # units, sizes, unsupported content
    suffix: str  # of the file's name; "" for a folder
    write: Write
    files: str = ""  # regular expression of the file names in a folder

    @property
    def folder(self) -> bool:
        """Whether the output is a folder of files."""
        return bool(self.files)


def refuse(exporter: Exporter, output: Path, *, force: bool) -> None:
    """Check that the output of an export can be written, before any work is done.

    Raises
    ------
    TraceError
        If it exists and must not be replaced, or cannot be created.
    """
    if not exporter.folder:
        validate_output(output, force=force, error=TraceError)
        return
    validate_folder(output.absolute().parent, error=TraceError)
    if output.exists() and not output.is_dir():
        raise TraceError(
            f"{exporter.name} is a folder of files, but {output} is a file: choose "
            "another output"
        )
    if not output.is_dir():
        return
    inside = sorted(p.name for p in output.iterdir())
    odd = [n for n in inside if not re.fullmatch(exporter.files, n)]
    if odd:
        raise TraceError(
            f"a folder is replaced where all in it is {exporter.name}, but {output} "
            f"holds {odd[0]!r}: choose another output"
        )
    if inside and not force:
        raise TraceError(
            f"{output} exists and is not overwritten: choose another output, or give "
            "--force"
        )


def write(
    exporter: Exporter,
    trace: Trace,
    output: Path,
    options: ExportOptions,
    *,
    force: bool,
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Export a trace atomically with the given exporter.

    Returns
    -------
    tuple of Path, tuple of str
        The files, and descriptions of omitted content.

    Raises
    ------
    TraceError
        If the trace cannot be represented in this format, or writing fails.
    """
    refuse(exporter, output, force=force)
    try:
        with _aside(exporter, output) as aside:
            lost = tuple(exporter.write(trace, aside, options))
            if not exporter.folder:  # too slow for folders of thousands of files
                _synchronize(aside)
    except OSError as error:
        raise TraceError(
            f"{output} cannot be written ({error.strerror or error}): {remedy(error)}"
        ) from None
    files = sorted(output.iterdir()) if exporter.folder else [output]
    return tuple(files), lost


@contextmanager
def _aside(exporter: Exporter, output: Path) -> Iterator[Path]:
    """Yield a temporary folder or file that replaces the output when it is complete."""
    making = output.with_name(f".{output.name}.{os.getpid()}.making")
    making.mkdir()
    made = making if exporter.folder else making / output.name
    try:
        yield made
        if exporter.folder and output.is_dir():
            remove_folder(output)
        os.rename(made, output)
        sync_folder(output.absolute().parent)
    finally:
        if making.exists():
            shutil.rmtree(making)


def _synchronize(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
