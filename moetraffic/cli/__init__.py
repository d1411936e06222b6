"""The command line: a file a verb, in folders by subject."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
