"""Text before it is displayed: width of a line, escapes of what others wrote."""

from __future__ import annotations

from html import escape

LOG_WIDTH = 120
"""Characters of a line in a log or a pipe, which have no width of their own."""


def visible(value: object, *, lines: bool = False) -> str:
    r"""Replace terminal control characters by their escape sequences.

    Control characters, bidirectional marks, zero-width characters and lone surrogates
    become the escapes of a Python literal; other characters are kept.

    With ``lines``, line breaks and tabs are kept.

    Examples
    --------
    >>> visible("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    >>> visible("two\nlines", lines=True)
    'two\nlines'
    """
    text = str(value)
    if text.isprintable():
        return text
    keep = "\xa0\n\t" if lines else "\xa0"
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode()
        for c in text
    )


def html_text(value: object) -> str:
    """Escape text for HTML elements and attributes.

    Examples
    --------
    >>> html_text("<b>")
    '&lt;b&gt;'
    """
    return escape(visible(value), quote=True)
