"""Commands that a summary recommends next."""

from __future__ import annotations

from itertools import product
from math import isnan
from shlex import quote

from moetraffic.analysis import Analysis
from moetraffic.analysis.noise.skew_claims import NO_TOKENS
from moetraffic.analysis.omissions import UNCOUNTED

from .claim_words import known_experts
from .line import LONG, STEP, WIDTH, Line
from .measured_words import known_figures


def next_line(analysis: Analysis, file: str, options: str) -> Line:
    """Recommend the next commands; a long path is named once."""
    first = f"{remedy}; " if (remedy := _remedy(analysis)) else ""
    verbs = {"analyze": "each layer"} if analysis.exchanges else {}
    if any(len(e.ranks) > 1 for e in analysis.exchanges):
        verbs["evaluate"] = "circuits"
    verbs["report"] = "charts"
    texts, asked = list[str](), f" {options}" * bool(options)
    width = LONG if options else WIDTH
    path = quote(file)
    names = (path, ""), ('"$T"', f"T={path}; ")
    for described, (name, where) in product((True, False), names):
        commands = (
            f"moetraffic {verb} {name}{asked}"
            + " --tables" * (verb == "analyze")
            + f" ({what})" * described
            for verb, what in verbs.items()
        )
        texts.append(first + where + "; ".join(commands))
    fits = (text for text in texts if len(f"Next: {text}") <= width)
    return Line(topic="Next", text=next(fits, min(texts, key=len)), basis=STEP)


def _remedy(analysis: Analysis) -> str:
    """State what makes layers, experts, tokens or drops known; "" if nothing does."""
    untested = [[c.untested for c in e.claims] for e in analysis.exchanges]
    if known_experts(analysis) and not analysis.unnamed:
        lacks_k = untested and all(NO_TOKENS in each for each in untested)
        where = "Recorder(k=K), moetraffic run --k K"
        if analysis.origin == "imported":
            where = "Trace.from_arrays(k=K), import --k K"
        if lacks_k:
            return f"give k, experts per token ({where})"
        lost = any(isnan(each.dropped) for each in known_figures(analysis.exchanges))
        counted = not any(UNCOUNTED in note for note in analysis.notes)
        if lost and counted and analysis.origin == "captured":
            how = "python -m pydoc moetraffic.capture.routing"
            return f"report drops, if the router has a capacity ({how})"
        return ""
    if analysis.origin == "replayed":
        return ""  # a replay has no router
    if analysis.origin == "imported":
        how = (
            "again with --experts E --k K" if analysis.unnamed else "a table of tokens"
        )
        return f"import {how} (moetraffic import --help)"
    example = "moetraffic.capture.router(MyGate, lambda x, out: out[1], experts=8)"
    return f"register your router: {example}"
