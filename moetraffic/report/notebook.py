"""Register the tables that notebooks show for results.

Importing this module registers them with :func:`moetraffic.tables.tables_of`.
"""

from __future__ import annotations

from .results import comparison, fabric, overview, summary

__all__ = ["comparison", "fabric", "overview", "summary"]
