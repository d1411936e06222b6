"""The command line: a file a verb, in folders by subject."""

from .app import main

__all__ = ["main"]
