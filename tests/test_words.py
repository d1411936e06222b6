"""Texts that a person reads use the terms of ``docs/glossary.md``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("moetraffic", "gating", "models", "replay", "data")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

REPLACED = {
    r"(who|which) knows? the gate": "oracle",
    r"(as|of|than|by|beside|over) the last value'?s?": "persistence baseline",
    r"the last value's share": "persistence baseline",
    r"best from the past": "best history-based forecaster",
    r"bytes are placed": "share of bytes in cells forecast to within ...",
    r"told by the program": "annotated",
    r"found by order": "inferred from call order",
    r"(nobody|not|no hook or router) (tells?|told)\b": "unknown; inferred",
    r"of it to the rank itself": "rank-local (self) traffic",
    r"step over counting": "change relative to sampling noise",
    r"by counting( alone)?\b": "expected from sampling noise",
    r"hot set kept": "hot-expert retention",
    r"settled at": "converged at iteration",
    r"comes? to rest": "converge",
    r"of a run that never was": "synthetic",
    r"runs? that never w(as|ere)": "synthetic traffic",
    r"(a|one) page to look at": "HTML report",
    r"to look at and to hand on": "report and export",
    r"held against": "compared with; validation",
    r"hold against": "compare with",
    r"what a network gives": "bandwidth",
    r"mean over the routing's": "ratio to ECMP",
    r"balls in bins": "expected under random hashing",
    r"set(ting)? (circuits )?anew": "reconfiguration",
    r"with setting\b": "including reconfiguration",
    r"stands? out of the gr[ae]y": "outside the gray band",
    r"up to, not with": "half-open range [A, B)",
    r"times the skew": "scale the load skew by this factor",
    r"of it while computing": "model FLOPs utilization (MFU)",
    r"tokens there are": "vocabulary size",
    r"\bbattery\b": "test suite (two-sample tests)",
    r"\b(seen as )?twins?\b(?!_)": "synthetic trace",
    r"\bportraits?\b": "permutation-invariant features",
    r"\binquests?\b": "root cause",
    r"\byardsticks?\b": "baselines",
    r"\bwander(s|ing|ed)?\b": "drift",
    r"hangs? together": "correlated",
    r"how-manieth": "index within",
    r"next to nothing is there": "too few segments",
    r"goes round a ring": "uses a ring",
    r"for ever\b": "forever; permanently",
    r"\bunasked\b": "without a request",
    r"come what may": "unconditionally",
}
"""Phrases that were replaced, and the term that replaced each."""

PERSONS = (
    r"\b(data|traces?|files?|pages?|tables?|formats?|counts|options?|programs?|runs?|"
    r"rings?|models?|heartbeats?) (tells?|told|says?|said|knows?|knew)\b"
)
"""Data does not speak: it contains, gives, has or shows."""

BRITISH = (
    r"\b(analys(e[dr]?|ing)|behaviours?|colou?red?(?<=oured)|colours?|favou?rs?(?<=ours)"
    r"|favourites?|neighbour\w*|centres?|labell(ed|ing)|modell(ed|ing)|grey"
    r"|(normal|optim|util|initial|recogn|summar|serial|synchron|token|quant|minim|maxim"
    r"|organ|parallel|special|visual|general|standard|random|renormal|real)is"
    r"(e[ds]?|ing|ations?))\b"
)
"""British spellings."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Messages and first docstring lines of a module; lines of a page."""
    source = path.read_text()
    if path.suffix == ".md":
        for line, text in enumerate(source.splitlines(), 1):
            yield line, re.sub(r"`[^`]*`", "", text)  # names of code are not prose
        return
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (text := ast.get_docstring(node)):
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield node.body[0].lineno, text.split("\n\n")[0].replace("\n", " ")
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value.strip()
            and id(node) not in docstrings
        ):
            yield node.lineno, node.value


def modules() -> list[Path]:
    return sorted(
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not any(p.is_symlink() for p in (path, *path.parents))
    )


def found(path: Path) -> list[str]:
    """What is to be replaced in a file, a line each."""
    place = path.relative_to(ROOT)
    out = []
    for line, text in texts(path):
        for phrase, term in REPLACED.items():
            if hit := re.search(phrase, text, re.I):
                out.append(f"{place}:{line}: {hit[0]!r}: write {term!r}")
        if hit := re.search(PERSONS, text, re.I):
            out.append(f"{place}:{line}: {hit[0]!r}: data does not speak")
        if hit := re.search(BRITISH, text, re.I):
            out.append(f"{place}:{line}: {hit[0]!r}: write American English")
    return out


@pytest.mark.parametrize("kind", ["pages", "modules"])
def test_replaced_phrases_do_not_come_back(kind: str) -> None:
    paths = PAGES if kind == "pages" else modules()
    assert len(paths) > 20
    hits = [hit for path in paths for hit in found(path)]
    assert not hits, "\n".join(hits)


def test_no_message_names_a_file_that_only_the_repository_has() -> None:
    """An installed package has neither the pages nor the examples."""
    named = []
    for path in modules():
        tree = ast.parse(path.read_text())
        unprinted = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        named += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in unprinted
            and re.search(r"\b(docs|examples|benchmarks|tests)/|\w\.md\b", node.value)
        ]
    assert not named
