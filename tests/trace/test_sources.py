"""Layers, phases, directions and steps carry how they were determined."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np

from moetraffic.data import path
from moetraffic.interop import import_trace
from moetraffic.interop.write import ExportOptions, export_trace
from moetraffic.report.views.info import info
from moetraffic.trace import PHASES, ROUTING, Site, Source, Trace
from moetraffic.trace.merge import log_format as log
from moetraffic.trace.merge.merging import merge_records
from moetraffic.trace.merge.rank_log import read_rank
from moetraffic.trace.merge.rank_record import RankRecord
from moetraffic.trace.provenance import source_clause, source_counts
from tests.watch.logs import LAYERS, RankWriter, record

from .conftest import make_trace
from .merge.test_merging import make

UNKNOWN, GUESSED, LINKED, STATED = Source


def sourced_record(rank: int, source: Source) -> RankRecord:
    """The record of a rank, whose sites and steps have the given source."""
    record = make(rank)
    record.steps["source"] = source
    return replace(record, sites=tuple(replace(s, source=source) for s in record.sites))


def test_a_merge_keeps_the_weakest_source_of_the_ranks() -> None:
    stated, linked = sourced_record(0, STATED), sourced_record(1, LINKED)
    whole = merge_records([stated, sourced_record(1, STATED)], "run").trace
    mixed = merge_records([stated, linked], "run").trace
    assert whole.sites == mixed.sites
    assert {s.source for s in whole.sites} == {STATED}
    assert {s.source for s in mixed.sites} == {LINKED}
    assert (whole.steps.source == STATED).all()
    assert (mixed.steps.source == LINKED).all()


def test_what_the_order_of_the_calls_implies_is_inferred() -> None:
    def bare(record: RankRecord) -> RankRecord:
        sites = [
            replace(s, source=LINKED)
            if s.operation == ROUTING
            else replace(s, phase="", layer=-1, source=UNKNOWN)
            for s in record.sites
        ]
        return replace(record, sites=tuple(sites))

    records = [bare(sourced_record(rank, STATED)) for rank in (0, 1)]
    trace = merge_records(records, "run").trace
    by_name = {s.phase or s.operation: s.source for s in trace.sites}
    assert by_name == {ROUTING: LINKED} | dict.fromkeys(PHASES, GUESSED)
    assert (trace.steps.source == STATED).all()


def test_steps_that_the_calls_imply_are_inferred() -> None:
    def unmarked(record: RankRecord) -> RankRecord:
        """The calls of a record, with a norm of gradients after each step."""
        steps = record.calls.reshape(-1, 5)
        norm = steps[:, -1:].copy()
        norm["site"], norm["payload"], norm["transposed"] = 5, 8, 0
        norm["issue"], norm["end"] = norm["issue"] + 1, norm["end"] + 1
        calls = np.concatenate([steps, norm], axis=1).reshape(-1)
        collective = calls["sequence"] >= 0
        calls["sequence"][collective] = np.arange(collective.sum())
        calls["iteration"] = -1
        site = Site(group=0, operation="all_reduce", dtype="float64")
        sites = (*record.sites, site)
        return replace(record, calls=calls, sites=sites, steps=record.steps[:0])

    records = [unmarked(sourced_record(rank, UNKNOWN)) for rank in (0, 1)]
    steps = merge_records(records, "run").trace.steps
    assert len(steps.iteration)
    assert (steps.source == GUESSED).all()


def test_a_capture_without_annotations_says_how_it_was_named() -> None:
    with Trace.open(path("golden-linked.h5")) as trace:
        named = {s.direction: s.source for s in trace.sites if s.phase}
        assert named["backward"] == GUESSED
        assert named["forward"] == STATED


def sourced() -> Trace:
    """A trace with one call of each source, whose first step is inferred."""
    trace = make_trace()
    steps = trace.steps
    source = np.full(len(steps.iteration), STATED, np.uint8)
    source[0] = GUESSED
    sites = [
        replace(s, source=GUESSED if s.phase else LINKED if s.layer >= 0 else UNKNOWN)
        for s in trace.sites
    ]
    return trace.replaced(sites=sites, steps=replace(steps, source=source))


def test_a_hook_links_and_a_program_annotates(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, 0)
    contexts = [
        (3, "dispatch", "", False, 0, 0),
        (3, "", "", True, 0, 0),
        (-1, "", "gradient_sync", False, 0, 0),
        (-1, "", "", True, 0, 0),
        (-1, "", "", False, 0, 0),
    ]
    with writer.path.open("ab") as file:
        file.write(log.message({"define": [("context", c) for c in contexts]}))
    words = array("q")
    for number in range(len(contexts)):
        operation = log.OPERATIONS.index("all_reduce")
        call = [number, 0, operation, 0, LAYERS + number, 0, 0, 0, 1, -1, -1, -1, -1]
        words.extend(record(log.CALL, [*call, 64, 4, 0, 0, 0, 0]))
    writer.append(words)
    writer.close()
    # a hook that knows neither layer nor phase links nothing
    sources = [STATED, LINKED, STATED, UNKNOWN]
    assert [s.source for s in read_rank(tmp_path, 0).sites] == sources


def test_a_capture_states_its_sources(captured: Path) -> None:
    with Trace.open(captured) as trace:
        counts = source_counts(trace)
        assert source_clause(trace) == ""
        for what in ("calls", "steps"):
            assert counts[what]["annotated"] == sum(counts[what].values()) > 0


def test_guesses_are_counted_and_named_where_a_trace_is_shown(tmp_path: Path) -> None:
    trace = sourced()
    calls = len(trace.find(operation="all_to_all", kind=None))
    routed = len(trace.find(operation=ROUTING, kind=None))
    none = dict.fromkeys(("annotated", "linked", "inferred", "unknown"), 0)
    steps = len(trace.steps.iteration)
    assert source_counts(trace) == {
        "calls": none | {"linked": routed, "inferred": calls - 40, "unknown": 40},
        "steps": none | {"annotated": steps - 1, "inferred": 1},
    }
    label = trace.matrix(0, 0, "dispatch").label
    assert label.endswith("inferred layer and phase and iteration")
    table = trace.calls()
    dispatch = table[table.phase == "dispatch"]
    assert set(dispatch.source) == {"inferred"}
    by_step = dict(zip(dispatch.iteration, dispatch.step_source, strict=True))
    assert by_step == dict.fromkeys(by_step, "annotated") | {0: "inferred"}
    assert trace.to_xarray().attrs["source"] == "linked"
    trace.save(tmp_path / "run.h5")
    result = info(trace, tmp_path / "run.h5")
    counts = source_counts(trace)
    assert result.frame("sources").set_index("of").to_dict("index") == counts
    calls = result.frame("calls")
    assert set(calls[calls.call == "dispatch"].named_by) == {"inferred"}


def test_a_table_of_calls_is_imported_with_its_sources(tmp_path: Path) -> None:
    trace = sourced()
    for of in ("wire", "demand"):
        options = ExportOptions(of=of)
        export_trace(trace, tmp_path / f"{of}.csv", "csv", options=options)
        read = import_trace([tmp_path / f"{of}.csv"])
        operation = ROUTING if of == "demand" else "all_to_all"
        expected = {
            (s.phase, s.layer, s.direction): s.source
            for s in trace.sites
            if s.operation == operation
        }
        found = {(s.phase, s.layer, s.direction): s.source for s in read.sites}
        assert found == expected
        assert read.steps.source.tolist() == [GUESSED] + [STATED] * (
            len(read.steps.source) - 1
        )
