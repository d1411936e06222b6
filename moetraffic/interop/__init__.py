"""Import the files of other tools as traces, and export traces to them."""

from .read import FORMATS, ImportOptions, import_files, import_trace

__all__ = ["FORMATS", "ImportOptions", "import_files", "import_trace"]
