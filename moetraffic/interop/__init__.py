"""Import the files of other tools as traces."""

from .importer import ImportOptions
from .importers import FORMATS, import_files, import_trace

__all__ = ["FORMATS", "ImportOptions", "import_files", "import_trace"]
