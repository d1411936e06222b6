"""Nothing of the site is fetched from elsewhere, and formulas need no script.

Formulas become MathML (Core), which browsers draw by themselves.  The theme's search in
a folder asks another host for a stand-in for Worker; it gets ours.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert
from mkdocs.utils import get_relative_url

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL
)
STAND_IN = re.compile(r'<script src="https?://[^"]*/iframe-worker/[^"]*">')


def on_page_content(content: str, **_: Any) -> str:
    """Replace what pymdownx.arithmatex marked as LaTeX by ``<math>`` elements.

    Parameters
    ----------
    content
        HTML of a page's text; formulas stand in ``span`` (inline) or ``div`` (a line of
        its own) of class ``arithmatex``.
    """
    return FORMULA.sub(mathml, content)


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Let a whole page load the stand-in for Worker from the site itself."""
    own = get_relative_url("javascripts/frame-worker.js", page.url)
    return STAND_IN.sub(f'<script src="{own}">', output)


def on_post_template(output_content: str, **_: Any) -> str:
    """Likewise of the page for addresses that are none, which lies at the root."""
    return STAND_IN.sub('<script src="javascripts/frame-worker.js">', output_content)


def mathml(found: re.Match[str]) -> str:
    """A formula that `FORMULA` found, as MathML."""
    display = "block" if found[1] == "div" else "inline"
    return convert(html.unescape(found[2]), display=display)
