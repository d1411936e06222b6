"""Register the tables that notebooks show for results.

Importing this module registers them with :func:`moetraffic.tables.tables_of`.
"""

from .results import watch

__all__ = ["watch"]
