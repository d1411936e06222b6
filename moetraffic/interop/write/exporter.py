"""Options of an export, the description of a format, and atomic writing.

A package adds a format by an entry point in the group ``moetraffic.exporters`` that is
an :class:`Exporter`::

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


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Selection of calls to export, and the pace at which they begin."""

    iterations: range | None = None  # None: all training iterations
    layers: tuple[int, ...] | None = None  # None: all
    phase: str = ""  # one of PHASES; "": all
    unnamed: bool = False  # include all-to-alls without a phase if others have one
    of: str = "wire"  # "wire": bytes sent; "demand": bytes routed
    pace: str = "captured"  # begin of calls: "captured", or "asap" after other calls
    every_ns: int = 0  # > 0: interval between begins of calls, overrides pace
    unit: str = "B"  # of numbers in matrices, for formats with several units

    def __post_init__(self) -> None:
        check_choice("phase", self.phase, ("", *PHASES), TraceError)
        check_choice("of", self.of, ("wire", "demand"), TraceError)
        check_choice("pace", self.pace, ("captured", "asap"), TraceError)
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

    def check_output(self, output: Path, *, force: bool) -> None:
        """Check that the output can be written, before any work is done."""
        if not self.folder:
            validate_output(output, force=force, error=TraceError)
            return
        validate_folder(output.absolute().parent, error=TraceError)
        if output.exists() and not output.is_dir():
            raise TraceError(
                f"{self.name} is a folder of files, but {output} is a file: choose "
                "another output"
            )
        names = sorted(p.name for p in output.iterdir()) if output.is_dir() else []
        foreign = [n for n in names if not re.fullmatch(self.files, n)]
        if foreign:
            raise TraceError(
                f"a folder is replaced where all in it is {self.name}, but {output} "
                f"holds {foreign[0]!r}: choose another output"
            )
        if names and not force:
            raise TraceError(
                f"{output} exists and is not overwritten: choose another output, or "
                "give --force"
            )

    def export(
        self, trace: Trace, output: Path, options: ExportOptions, *, force: bool
    ) -> Exported:
        """Write a trace atomically."""
        self.check_output(output, force=force)
        folder = output.with_name(f".{output.name}.{os.getpid()}.making")
        made = folder if self.folder else folder / output.name
        try:
            with write_errors(output, error=TraceError):
                folder.mkdir()
                lost = tuple(self.write(trace, made, options))
                if not self.folder:  # too slow for folders of thousands of files
                    with made.open("rb") as file:
                        os.fsync(file)
                elif output.is_dir():
                    remove_folder(output)
                os.rename(made, output)
                sync_folder(output.absolute().parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        files = tuple(sorted(output.iterdir())) if self.folder else (output,)
        size = sum(file.stat().st_size for file in files)
        return Exported(format=self.name, files=files, bytes=size, lost=lost)
