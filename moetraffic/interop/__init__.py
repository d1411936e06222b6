"""Traces from what other tools wrote: an importer a format."""

from __future__ import annotations

from .detection import FORMATS
from .importing import Options, import_files, import_trace

__all__ = ["FORMATS", "Options", "import_files", "import_trace"]
