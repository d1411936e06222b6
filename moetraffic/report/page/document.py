"""Render the HTML report: one file with all data and scripts, for any browser.

A content security policy forbids network access.  Text from a trace is escaped; data
are in ``application/json`` elements in which no tag can begin.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

from moetraffic import __version__
from moetraffic.errors import AnalysisError
from moetraffic.fabric import Network, load_fabric
from moetraffic.fabric.named import TOPOLOGIES
from moetraffic.files import validate_output, write_text
from moetraffic.report.chart import Missing
from moetraffic.result import Result
from moetraffic.tables import Table, plain
from moetraffic.text import html_text as escape
from moetraffic.trace import Trace

from .content import Content, Section, content
from .matrices import Matrices
from .plotly import as_dict

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'"
)


def document(content: Content) -> str:
    """Render the content of a report as HTML text, to be encoded as UTF-8."""
    from plotly.offline import get_plotlyjs

    script = base64.b64encode(zlib.compress(get_plotlyjs().encode(), 9)).decode()
    folder = resources.files(__package__)
    style = (folder / "page.css").read_text(encoding="utf-8")
    behavior = (folder / "page.js").read_text(encoding="utf-8")
    title = escape(content.title)
    shown = [
        section
        for section in content.sections
        if section.key == "summary"
        or not all(isinstance(part, Missing) for part in section.parts)
    ]
    links = "".join(f'<a href="#{s.key}">{escape(s.title)}</a>' for s in shown)
    body = "".join(_section(s, content) for s in shown)
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{title} · moetraffic</title>\n<style>\n{style}</style>\n",
            "</head>\n<body>\n",
            f'<header><p class="maker">moetraffic report</p><h1>{title}</h1>',
            f'</header>\n<nav aria-label="Sections"><div>{links}</div></nav>\n',
            "<noscript><p class='missing'>The figures are drawn by a script, which "
            "this browser does not run; words and tables are here.</p></noscript>\n",
            f"<main>\n{body}</main>\n",
            f"<footer><p>Made by moetraffic {escape(__version__)}. Works "
            "offline; nothing is sent anywhere.</p></footer>\n",
            f'<script type="text/plain" id="plotly">{script}</script>\n',
            f"<script>\n{behavior}</script>\n",
            "</body>\n</html>\n",
        ]
    )


def write_report(
    trace: Trace | str | Path,
    output: str | Path,
    *,
    replay: Trace | str | Path | None = None,
    other: Trace | str | Path | None = None,
    fabric: Network | str = "leaf-spine",
    capacity: str | None = None,
    force: bool = False,
    **asked: Any,
) -> Content:
    """Write the HTML report of a trace; the page works offline.

    Parameters
    ----------
    trace
        Trace to report on.
    output
        HTML file to write.
    replay, other
        Trace of a replay of the same run; trace of a run to compare with.
    fabric
        Network for the link loads: the name of a topology, a JSON file that describes
        one, or a loaded network.
    capacity
        Rate of a NIC in each direction; None takes the file's, or 400Gbps.
    force
        Replace an existing file.
    **asked
        Further arguments of :func:`.content.content`, such as ``layers`` and
        ``iterations``.

    Returns
    -------
    Content
        The sections of the page.

    Raises
    ------
    AnalysisError
        If the output cannot be written or an argument is out of range.
    """
    trace, output = Trace.open(trace), Path(output)
    validate_output(output, force=force, error=AnalysisError)
    if isinstance(fabric, str):
        rate = capacity or ("400Gbps" if fabric in TOPOLOGIES else None)
        fabric = load_fabric(fabric, trace.meta.world, capacity=rate)
    replay = None if replay is None else Trace.open(replay)
    other = None if other is None else Trace.open(other)
    found = content(trace, fabric, replay=replay, other=other, **asked)
    write_text(output, document(found), error=AnalysisError)
    return found


def _section(section: Section, content: Content) -> str:
    inside = "".join(_part(p) for p in section.parts if not isinstance(p, Missing))
    if section.key == "about":
        inside += _unavailable(content)
    about = f'<p class="about">{escape(section.about)}</p>' if section.about else ""
    return (
        f'<section id="{section.key}"><h2>{escape(section.title)}</h2>{about}'
        f'<div class="cards">{inside}</div></section>\n'
    )


def _unavailable(content: Content) -> str:
    """List what the page does not show, with the reason of each."""
    lacking = [p for s in content.sections for p in s.parts if isinstance(p, Missing)]
    lines = [f"{part.title}: {part.reason.rstrip('.')}." for part in lacking]
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (
        '<article class="card" id="unavailable"><h3>Unavailable</h3>'
        f'<ul class="notes">{items}</ul></article>'
    )


def _part(part: Any) -> str:
    if isinstance(part, Table | Result):
        name = part.title if isinstance(part, Table) else part.verb
        key = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        inside = part._repr_html_()
        return (
            f'<article class="card listed" id="figure-{key}"><div class="scroll" '
            f'tabindex="0">{inside}</div><p class="downloads"></p></article>'
        )
    if isinstance(part, Matrices):
        kind, height = "matrices", 520
        data = {"key": part.key, "blocks": part.blocks}
    else:
        kind, height, data = "chart", part.height, as_dict(part)
    return (
        f'<article class="card figure" id="figure-{part.key}" data-kind="{kind}">'
        f"<h3>{escape(part.title)}</h3>"
        '<div class="controls"></div>'
        f'<div class="plot" style="height:{height}px" role="img" '
        f'aria-label="{escape(part.title)}"></div>'
        '<p class="aside" aria-live="polite"></p>'
        f'<p class="source">{escape(part.source.rstrip("."))}.</p>'
        '<p class="downloads"></p>'
        f'<script type="application/json" id="data-{part.key}">{data_text(data)}'
        "</script></article>"
    )


def data_text(value: Any) -> str:
    """Encode a value as JSON for a script element; non-finite numbers become null."""
    text = json.dumps(plain(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
