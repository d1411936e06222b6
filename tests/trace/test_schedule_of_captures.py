"""Captures of our own models, stripped of every name and mark, are found again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.trace.merge.log_format import ranks_of
from moetraffic.trace.merge.merging import merge_records
from moetraffic.trace.merge.rank_log import read_rank
from moetraffic.trace.merge.rank_record import RankRecord, Record, join_ranks
from moetraffic.trace.model import ALL_TO_ALL, PHASES, ROUTING

from .conftest import as_ranks, inferred, modules

pytestmark = pytest.mark.slow

QUICK = ("dropped", "padded-again")
LONG = (
    *("dropless", "alone", "padded", "again", "pipeline", "short-pipeline"),
    *("tensor", "shared", "zero1", "zero3"),
)


@pytest.fixture(scope="session")
def rehearsed(
    once: Callable[[str, Callable[[Path], None]], Path],
) -> Callable[[str], list[RankRecord]]:
    """``rehearsed(name)``: the records of a scene of ``rehearsals.py``."""

    def play(name: str) -> list[RankRecord]:
        def make(folder: Path) -> None:
            script = Path(__file__).with_name("rehearsals.py")
            names = QUICK if name in QUICK else (name,)
            ran = subprocess.run(
                [sys.executable, script, folder, *names],
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr[-4000:]

        folder = once("quick" if name in QUICK else name, make)
        logs = folder / f"{name}.h5.logs"
        records = [read_rank(logs, rank) for rank in ranks_of(logs)]
        return as_ranks(_with_blocks(join_ranks(records)))

    return play


def _with_blocks(record: Record) -> Record:
    """The calling modules that the hook finds where nothing is annotated."""
    calls = record.calls.copy()
    sent = record.site_mask([s.operation == ALL_TO_ALL for s in record.sites])
    layer = np.array([s.layer for s in record.sites])[calls["site"]]
    ends = record.site_mask([s.phase == "combine" for s in record.sites])
    for direction in ("forward", "recompute"):
        ahead = sent & record.site_mask(
            [s.direction == direction for s in record.sites]
        )
        of_ranks = np.unique(np.stack([calls["rank"], layer])[:, ahead], axis=1)
        for rank, n in of_ranks.T.tolist():
            mine = np.flatnonzero(ahead & (calls["rank"] == rank) & (layer == n))
            before = np.cumsum(ends[mine]) - ends[mine]  # calls of the module
            calls["module_call"][mine] = 2 * n + 2 + before % 2
    ranks = {
        number: replace(rank, modules=modules(calls[record.calls_of[number]]))
        for number, rank in record.ranks.items()
    }
    return replace(record, calls=calls, ranks=ranks)


def stripped(
    record: RankRecord, *, links: bool, routing: bool, marks: bool
) -> RankRecord:
    """The same calls of somebody's program that says nothing."""
    sites = tuple(
        replace(s, phase="", label="", layer=s.layer if s.operation == ROUTING else -1)
        for s in record.sites
    )
    kept = record.calls.copy()
    if not links:
        kept["link"] = -1
    if not routing:
        seen = np.array([s.operation != ROUTING for s in sites], bool)
        kept = kept[seen[kept["site"]]]
    bare = replace(
        record,
        meta=replace(record.meta, workload="", experts=0),
        groups=tuple(replace(g, kind="other") for g in record.groups),
        sites=sites,
        calls=kept,
    )
    if marks:
        return bare
    kept["iteration"] = -1
    return replace(bare, steps=record.steps[:0])


def calls(records: list[RankRecord], *, routing: bool) -> list[tuple[Any, ...]]:
    """What is said of each call of each rank, in order."""
    told = []
    for record in records:
        for call in record.calls:
            site = record.sites[call["site"]]
            name: tuple[Any, ...] = ()
            if site.operation == ALL_TO_ALL:
                name = (site.phase, site.layer, site.label)
            elif site.operation == ROUTING and not routing:
                continue
            told.append((record.rank, int(call["iteration"]), site.operation, *name))
    return told


def by_ordinal(told: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Layers counted from 0, those with experts alone."""
    layers = sorted({t[4] for t in told if len(t) > 3})
    return [(*t[:4], layers.index(t[4]), t[5]) if len(t) > 3 else t for t in told]


def check(original: list[RankRecord]) -> None:
    # in a pipeline, routers alone show the layers
    piped = any(s.peers != (-1, -1) for record in original for s in record.sites)
    for links in (True, False):
        for routing in (True, False)[: 1 if piped else 2]:
            for marks in (True, False):
                bare = [
                    stripped(s, links=links, routing=routing, marks=marks)
                    for s in original
                ]
                found = inferred(bare)
                expected = calls(original, routing=routing)
                if not routing:
                    expected = by_ordinal(expected)
                said = calls(found, routing=True)
                if not links:  # a gradient with the splits of several calls is unknown
                    expected = [
                        (*e[:3], "", -1, "")
                        if len(e) > 3 and e[3].endswith("_grad") and not s[3]
                        else e
                        for e, s in zip(expected, said, strict=True)
                    ]
                assert said == expected
                ended = [len(s.steps) for s in original]
                assert sum(len(s.steps) for s in found) == sum(ended)


@pytest.mark.parametrize("name", QUICK)
def test_what_our_models_say_is_found_again(
    name: str, rehearsed: Callable[[str], list[RankRecord]]
) -> None:
    check(rehearsed(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_what_all_our_models_say_is_found_again(
    name: str, rehearsed: Callable[[str], list[RankRecord]]
) -> None:
    check(rehearsed(name))


def test_matrices_are_those_of_the_run_that_said_everything(
    rehearsed: Callable[[str], list[RankRecord]],
) -> None:
    original = rehearsed("dropped")
    whole = merge_records(original, "told").trace
    bare = [stripped(s, links=False, routing=True, marks=False) for s in original]
    # only the hook on the routers and the group's kind say more than the calls
    merged = merge_records(bare, "found")
    assert merged.contradictions == ()
    found = merged.trace
    assert whole.meta.schedule == ""
    assert found.steps.kind == ("train",) * 5
    assert found.layers == whole.layers
    for iteration in whole.iterations.tolist():
        for layer in whole.layers:
            for phase in PHASES:
                for micro_batch in range(3):
                    a, b = (
                        t.matrix(
                            iteration,
                            layer,
                            phase,
                            of="wire",
                            micro_batch=micro_batch,
                            space="world",
                        )
                        for t in (whole, found)
                    )
                    assert (a.values == b.values).all()
