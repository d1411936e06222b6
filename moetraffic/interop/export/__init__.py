"""Export traces to the file formats of other tools."""

from .exporter import Exported, Exporter, ExportOptions
from .registry import EXPORTERS, export_trace, exporter_named, known_exporters

__all__ = [
    "EXPORTERS",
    "ExportOptions",
    "Exported",
    "Exporter",
    "export_trace",
    "exporter_named",
    "known_exporters",
]
