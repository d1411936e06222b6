"""Exporter interface, options of an export, and atomic writing of exports.

A third party adds a format with an entry point in the group ``moetraffic.exporters``
that is an :class:`Exporter`::

    [project.entry-points."moetraffic.exporters"]
    mine = "my_package:EXPORTER"
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moetraffic.errors import TraceError
from moetraffic.files import (
    remove_folder,
    sync_folder,
    validate_folder,
    validate_output,
    write_errors,
)
from moetraffic.spelling import check_choice
from moetraffic.trace import PHASES, Trace

CONTENTS = ("wire", "demand")
PACES = ("captured", "asap")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Selection of calls to export, and the pace at which they begin.

    Raises
    ------
    TraceError
        If an option has an invalid value.
    """

    iterations: range | None = None  # None: all training iterations
    layers: tuple[int, ...] | None = None  # None: all
    phase: str = ""  # one of PHASES; "": all
    unnamed: bool = False  # include all-to-alls without a phase if others have one
    of: str = "wire"  # "wire": bytes sent; "demand": bytes routed
    pace: str = "captured"  # begin of calls: "captured", or "asap" after other calls
    every_ns: int = 0  # > 0: interval between begins of calls, overrides pace
    unit: str = "B"  # of numbers in matrices, for formats with several units

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("phase", self.phase, ("", *PHASES)),
            ("of", self.of, CONTENTS),
            ("pace", self.pace, PACES),
        ):
            check_choice(name, value, allowed, TraceError)
        if self.every_ns < 0:
            raise TraceError(
                f"calls begin one after another, but every is {self.every_ns} ns: "
                "raise it, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of an export: format, files, and omitted content."""

    format: str
    files: tuple[Path, ...]
    bytes: int  # of the files
    lost: tuple[str, ...]  # omitted or unsupported content, a sentence each


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
    """Check that the output of an export can be written, before any work is done."""
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
) -> Exported:
    """Export a trace atomically with the given exporter."""
    refuse(exporter, output, force=force)
    making = output.with_name(f".{output.name}.{os.getpid()}.making")
    made = making if exporter.folder else making / output.name
    try:
        with write_errors(output, error=TraceError):
            making.mkdir()
            lost = tuple(exporter.write(trace, made, options))
            if not exporter.folder:  # too slow for folders of thousands of files
                with made.open("rb") as file:
                    os.fsync(file)
            elif output.is_dir():
                remove_folder(output)
            os.rename(made, output)
            sync_folder(output.absolute().parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    files = tuple(sorted(output.iterdir())) if exporter.folder else (output,)
    return Exported(
        format=exporter.name,
        files=files,
        bytes=sum(file.stat().st_size for file in files),
        lost=lost,
    )
