"""Register the tables that notebooks show for results.

Importing this module registers them with :func:`moetraffic.tables.tables_of`.
"""

from . import policy_scores
from .results import acceptance, comparison, fabric, overview, summary

__all__ = ["acceptance", "comparison", "fabric", "overview", "policy_scores", "summary"]
