"""Export traces to the file formats of other tools."""

from .conformance import check_exporter
from .exporter import Exported, Exporter, ExportOptions
from .registry import EXPORTERS, export_trace, exporter_named, known_exporters

__all__ = [
    "EXPORTERS",
    "ExportOptions",
    "Exported",
    "Exporter",
    "check_exporter",
    "export_trace",
    "exporter_named",
    "known_exporters",
]
