"""Import the files of other tools as traces."""

from __future__ import annotations

from .format_detection import FORMATS
from .importers import ImportOptions, import_files, import_trace

__all__ = ["FORMATS", "ImportOptions", "import_files", "import_trace"]
