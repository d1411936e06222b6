"""The command line: a file a verb."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
