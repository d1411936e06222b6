"""Register the tables that notebooks show for results.

Importing this module registers them with :func:`moetraffic.tables.tables_of`.
"""

from . import policy_scores
from .results import acceptance, fabric

__all__ = ["acceptance", "fabric", "policy_scores"]
