"""Result of recomputing a published study: tables, and what is not reproducible.

A file a study in this folder has one function ``reproduce() -> Study``.  It computes
and returns; it prints, plots and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.tables import Table


@dataclass(frozen=True, kw_only=True)
class Study:
    """Recomputed tables of a published study, and what is not reproducible."""

    name: str  # as ``moetraffic reproduce NAME`` has it
    title: str
    source: str  # authors, venue, year
    tables: tuple[Table, ...]
    not_reproducible: tuple[str, ...]  # what, because of what
    notes: tuple[str, ...]  # remarks on the tables
