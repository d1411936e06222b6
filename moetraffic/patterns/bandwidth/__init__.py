"""Bandwidth that collectives get: measured, fitted, or stated by published systems."""

from __future__ import annotations

from .bandwidth_table import BandwidthTable, Curve, Effective, Sample

__all__ = ["BandwidthTable", "Curve", "Effective", "Sample"]
