"""HTML report of a run: all its charts and tables in one offline file."""

from .content import Content, content
from .document import document, write_report

__all__ = ["Content", "content", "document", "write_report"]
