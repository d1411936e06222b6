"""Traces in other tools' formats: an exporter a format."""

from __future__ import annotations

from .conformance import check_exporter
from .exporter import Exporter
from .exporting import EXPORTERS, export_trace, exporter_named, known_exporters
from .options import Exported, Options

__all__ = [
    "EXPORTERS",
    "Exported",
    "Exporter",
    "Options",
    "check_exporter",
    "export_trace",
    "exporter_named",
    "known_exporters",
]
