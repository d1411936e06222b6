"""Text of files and users, made harmless before it is shown."""

from __future__ import annotations

from html import escape


def visible(value: object, *, lines: bool = False) -> str:
    r"""Replace characters that control a terminal by their escape sequences.

    Control characters, bidirectional marks, zero-width characters and lone surrogates
    become what a Python literal has for them; all else stays.

    Parameters
    ----------
    value
        Text, or what is shown as ``str(value)``.
    lines
        Keep line breaks and tabs.

    Returns
    -------
    str
        Printable text.

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
    """Escape text for HTML, in elements and in attributes.

    Examples
    --------
    >>> html_text("<b>")
    '&lt;b&gt;'
    """
    return escape(visible(value), quote=True)
