"""The summary of an analysis, in a few lines."""

from __future__ import annotations
