"""Register the tables that notebooks show for results.

Importing this module registers them with :func:`moetraffic.tables.tables_of`.
"""

from __future__ import annotations

from . import policy_scores
from .results import comparison, fabric, overview, summary

__all__ = ["comparison", "fabric", "overview", "policy_scores", "summary"]
