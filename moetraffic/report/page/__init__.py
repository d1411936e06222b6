"""The HTML page of a run: everything that was computed of it, to look at offline."""

from __future__ import annotations

from .content import Content, content
from .document import document, write_report

__all__ = ["Content", "content", "document", "write_report"]
