"""Tables that notebooks show for results.

Importing this module registers them with :func:`moetraffic.tables.tables_of`.
"""

from __future__ import annotations

from . import comparison, fabric, summary

__all__ = ["comparison", "fabric", "summary"]
