"""Layers, phases, directions and steps carry how they were determined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.capture.annotate import CallContext
from moetraffic.capture.record_format import ROUTED
from moetraffic.capture.records.encoder import Encoder
from moetraffic.capture.records.record_tables import SiteTable
from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.interop import import_trace
from moetraffic.interop.export import export_trace
from moetraffic.interop.export.exporter import ExportOptions
from moetraffic.report.results.overview import overview, sentence, tables
from moetraffic.trace import PHASES, ROUTING, Group, Site, Source, Trace
from moetraffic.trace.merge.merging import merge_segments
from moetraffic.trace.model import SiteNumbers
from moetraffic.trace.provenance import source_clause, source_counts
from moetraffic.trace.segments.segment import (
    Segment,
    rank_folder,
    read_segment,
    write_segment,
)

from .conftest import make_trace
from .merge.test_merging import WINDOWS, make

UNKNOWN, GUESSED, LINKED, STATED = Source


def windows(rank: int, **sources: Source) -> list[Segment]:
    """The segments of a rank, whose sites and steps have the given sources."""
    made = []
    for index in range(WINDOWS):
        segment = make(rank, index)
        steps = segment.steps.copy()
        steps["source"] = sources.get("layer_source", UNKNOWN)
        steps["kind_source"] = STATED
        sites = tuple(replace(s, **sources) for s in segment.sites)
        made.append(replace(segment, sites=sites, steps=steps))
    return made


def test_sites_that_differ_in_their_sources_are_one_site_with_the_weakest() -> None:
    sites = SiteNumbers()
    first = Site(group=0, operation=ROUTING, layer=1).with_sources(
        STATED, LINKED, STATED
    )
    assert sites.add(first) == 0
    assert sites.add(replace(first, layer=2)) == 1
    assert sites.add(first.with_sources(LINKED, STATED, GUESSED)) == 0
    assert [s.sources for s in sites.sites] == [
        (LINKED, LINKED, GUESSED),
        (STATED, LINKED, STATED),
    ]


def test_a_merge_keeps_the_weakest_source_of_the_ranks() -> None:
    stated = {"layer_source": STATED, "phase_source": STATED}
    linked = {"layer_source": LINKED, "phase_source": STATED}
    whole = merge_segments([*windows(0, **stated), *windows(1, **stated)], "run").trace
    mixed = merge_segments([*windows(0, **stated), *windows(1, **linked)], "run").trace
    assert whole.sites == mixed.sites
    assert {s.sources for s in whole.sites} == {(STATED, STATED, UNKNOWN)}
    assert {s.sources for s in mixed.sites} == {(LINKED, STATED, UNKNOWN)}
    assert (whole.steps.source == STATED).all()
    assert (mixed.steps.source == LINKED).all()
    assert (mixed.steps.kind_source == STATED).all()


def test_what_the_order_of_the_calls_implies_is_inferred() -> None:
    def bare(segment: Segment) -> Segment:
        sites = [
            s if s.operation == ROUTING else replace(s, phase="", layer=-1)
            for s in segment.sites
        ]
        sources = [
            (LINKED, UNKNOWN, LINKED) if s.operation == ROUTING else (UNKNOWN,) * 3
            for s in sites
        ]
        return replace(
            segment,
            sites=tuple(
                s.with_sources(*w) for s, w in zip(sites, sources, strict=True)
            ),
        )

    segments = [bare(s) for rank in (0, 1) for s in windows(rank, layer_source=STATED)]
    trace = merge_segments(segments, "run").trace
    by_name = {s.phase or s.operation: s.sources for s in trace.sites}
    assert by_name == {ROUTING: (LINKED, UNKNOWN, LINKED)} | dict.fromkeys(
        PHASES, (GUESSED, GUESSED, UNKNOWN)
    )
    assert (trace.steps.source == STATED).all()


def test_steps_that_the_calls_imply_are_inferred() -> None:
    def unmarked(segment: Segment) -> Segment:
        """The calls of a segment, with a norm of gradients after each step."""
        steps = segment.events.reshape(-1, 5)
        norm = steps[:, -1:].copy()
        norm["site"], norm["payload"], norm["transposed"] = 5, 8, 0
        norm["issue"], norm["end"] = norm["issue"] + 1, norm["end"] + 1
        events = np.concatenate([steps, norm], axis=1).reshape(-1)
        called = events["sequence"] >= 0
        first = 5 * segment.index * len(steps)
        events["sequence"][called] = first + np.arange(called.sum())
        events["iteration"] = -1
        site = Site(group=0, operation="all_reduce", dtype="float64")
        sites = (*segment.sites, site)
        return replace(
            segment, events=events, sites=sites, steps=segment.steps[:0], kinds=()
        )

    segments = [unmarked(s) for rank in (0, 1) for s in windows(rank)]
    steps = merge_segments(segments, "run").trace.steps
    assert len(steps.iteration)
    assert (steps.source == GUESSED).all()
    assert (steps.kind_source == GUESSED).all()


def test_files_keep_sources(tmp_path: Path) -> None:
    trace = make_trace()
    count = len(trace.steps.iteration)
    sites = [
        s.with_sources(Source(n % 4), Source(n // 2 % 4), Source(n // 3 % 4))
        for n, s in enumerate(trace.sites)
    ]
    steps = replace(
        trace.steps,
        source=np.arange(count, dtype=np.uint8) % 4,
        kind_source=np.arange(count, dtype=np.uint8) // 2 % 4,
    )
    trace.replaced(sites=sites, steps=steps).save(tmp_path / "run.h5")
    with Trace.open(tmp_path / "run.h5") as read:
        assert [s.sources for s in read.sites] == [s.sources for s in sites]
        assert read.steps.source.tolist() == steps.source.tolist()
        assert read.steps.kind_source.tolist() == steps.kind_source.tolist()
    segment = windows(0, layer_source=LINKED)[0]
    rank_folder(tmp_path, 0).mkdir()
    read_back = read_segment(write_segment(segment, tmp_path))
    assert {s.layer_source for s in read_back.sites} == {LINKED}
    assert read_back.steps["source"].tolist() == [LINKED] * len(segment.steps)


def test_files_of_version_1_0_have_no_sources() -> None:
    with Trace.open(path("golden-v1.h5")) as trace:
        assert {source for s in trace.sites for source in s.sources} == {UNKNOWN}
        assert not trace.steps.source.any()
        assert not trace.steps.kind_source.any()


def test_the_golden_file_of_version_1_1_has_its_sources() -> None:
    with (
        Trace.open(path("golden-v1.h5")) as old,
        Trace.open(path("golden-v1.1.h5")) as new,
    ):
        assert new.sites == old.sites
        assert new.steps.iteration.tolist() == old.steps.iteration.tolist()
        expected = {
            "forward": (STATED, STATED, LINKED),
            "backward": (LINKED, GUESSED, LINKED),
            "recompute": (LINKED, GUESSED, GUESSED),
        }
        assert all(s.sources == expected[s.direction] for s in new.sites)
        count = len(new.steps.iteration)
        assert new.steps.source.tolist() == [STATED] + [LINKED] * (count - 1)
        assert new.steps.kind_source.tolist() == [GUESSED] * (count - 1) + [STATED]


@pytest.mark.parametrize("name", ["source", "kind_source"])
def test_a_source_that_does_not_exist_is_rejected(name: str) -> None:
    trace = make_trace()
    wrong = np.full(len(trace.steps.iteration), 4, np.uint8)
    for steps in (
        replace(trace.steps, **{name: wrong}),
        replace(trace.steps, **{name: wrong[1:] * 0}),
    ):
        with pytest.raises(TraceError, match="source of its boundaries"):
            trace.replaced(steps=steps)


def sourced() -> Trace:
    """A trace with one call of each source, whose first step is inferred."""
    trace = make_trace()
    steps = trace.steps
    source = np.full(len(steps.iteration), STATED, np.uint8)
    source[0] = GUESSED
    sites = [
        s.with_sources(
            LINKED if s.layer >= 0 else UNKNOWN,
            GUESSED if s.phase else UNKNOWN,
            LINKED,
        )
        for s in trace.sites[:-1]
    ]
    sites.append(replace(trace.sites[-1], direction=""))
    return trace.replaced(sites=sites, steps=replace(steps, source=source))


def test_a_hook_links_and_a_program_annotates() -> None:
    table = SiteTable()
    group = table.add_group(Group(kind="ep", ranks=(0, 1)))
    contexts = [
        CallContext(3, "dispatch", ""),
        CallContext(3, "", "", linked=True),
        CallContext(-1, "", "gradient_sync"),
        CallContext(-1, "", "", linked=True),
        CallContext(),
    ]
    for number, context in enumerate(contexts):
        place = [context.layer, context.phase, context.label, context.linked]
        operation = "all_to_all" if number < 4 else "all_reduce"
        table.at(operation, group, place, "forward", "float32", 4, source=LINKED)
    assert [s.sources for s in table.sites] == [
        (STATED, STATED, LINKED),
        (LINKED, UNKNOWN, LINKED),
        (STATED, STATED, LINKED),
        (UNKNOWN, UNKNOWN, LINKED),
        (UNKNOWN, UNKNOWN, LINKED),
    ]
    # a routing that a hook reported carries the hook's label
    encoder, words = Encoder(), list[int]()
    for label in ("", "router"):
        encoder.encode(
            (ROUTED, 0, "g", 1, label, 0, 0, True, [1, 2], None, None), words
        )
    places = [d["name"] for d in encoder.definitions() if d["define"] == "place"]
    assert places == [[-1, "", "", False, 0], [-1, "", "router", True, 0]]


def test_a_capture_states_its_sources(captured: Path) -> None:
    with Trace.open(captured) as trace:
        counts = source_counts(trace)
        assert all(
            part.startswith("layers")
            for part in source_clause(trace).split("; ")
            if part
        )
        for what in ("phases", "steps", "kinds of steps"):
            assert counts[what]["annotated"] == sum(counts[what].values()) > 0
        directions = counts["directions"]
        assert directions["linked"] > 0
        assert directions["annotated"] + directions["linked"] == len(trace.occurrences)
        routed = [s for s in trace.sites if s.operation == ROUTING]
        assert {s.layer_source for s in routed} == {STATED}


def test_calls_are_counted_by_source() -> None:
    trace = sourced()
    calls = np.bincount(trace.occurrences.site)
    operation = np.array([s.operation for s in trace.sites])
    phase = np.array([bool(s.phase) for s in trace.sites])
    exchange, routing = operation == "all_to_all", operation == ROUTING
    named = int(calls[exchange & phase].sum())
    other = int(calls[exchange & ~phase].sum())
    none = dict.fromkeys(("annotated", "linked", "inferred", "unknown"), 0)
    none["not recorded"] = 0
    total, steps = int(calls.sum()), len(trace.steps.iteration)
    assert source_counts(trace) == {
        "layers": none
        | {"linked": int(calls[routing].sum()) + named, "unknown": other},
        "phases": none | {"inferred": named, "unknown": other},
        "directions": none
        | {"linked": total - int(calls[-1]), "unknown": int(calls[-1])},
        "steps": none | {"annotated": steps - 1, "inferred": 1},
        "kinds of steps": none | {"not recorded": steps},
    }


def test_guesses_are_named_where_a_trace_is_shown(tmp_path: Path) -> None:
    trace = sourced()
    of = source_counts(trace)["phases"]
    number, whole = of["inferred"], sum(of.values())
    assert f"phases inferred ({number} of {whole}) and unknown" in repr(trace)
    assert "inferred" not in repr(make_trace())
    assert trace.matrix(0, 0, "dispatch").label.endswith("inferred phase and iteration")
    assert trace.matrix(1, 0, "dispatch").label.endswith("bytes, inferred phase")
    calls = trace.calls()
    dispatch = calls[calls.phase == "dispatch"]
    assert set(dispatch.layer_source) == {"linked"}
    assert set(dispatch.phase_source) == {"inferred"}
    by_step = dict(zip(dispatch.iteration, dispatch.step_source, strict=True))
    assert by_step == dict.fromkeys(by_step, "annotated") | {0: "inferred"}
    labeled = trace.replaced(steps=replace(trace.steps)).to_xarray()
    assert labeled.attrs["layer_source"] == "linked"
    assert labeled.attrs["iteration_source"] == "inferred"
    trace.save(tmp_path / "run.h5")
    plain = overview(trace, tmp_path / "run.h5")
    assert plain["sources"] == source_counts(trace)
    first = next(s for s in plain["sites"] if s["phase"] == "dispatch")
    assert (first["layer_source"], first["phase_source"]) == ("linked", "inferred")
    shown = {t.title: t for t in tables(trace)}
    table = shown["Sources of layers, phases, directions and steps"]
    assert [row[0] for row in table.rows] == [
        *("layers of calls", "phases of calls", "directions of calls"),
        *("steps", "kinds of steps"),
    ]
    bare = tables(make_trace())[0].rows
    assert "sources not recorded (trace format before 1.1)" in dict(bare)["file"]


def test_a_table_of_calls_is_imported_with_its_sources(tmp_path: Path) -> None:
    trace = sourced()
    for of in ("wire", "demand"):
        options = ExportOptions(of=of)
        export_trace(trace, tmp_path / f"{of}.csv", "csv", options=options)
        read = import_trace([tmp_path / f"{of}.csv"])
        operation = ROUTING if of == "demand" else "all_to_all"
        expected = {
            (s.phase, s.layer, s.direction): s.sources
            for s in trace.sites
            if s.operation == operation
        }
        found = {(s.phase, s.layer, s.direction): s.sources for s in read.sites}
        assert found == expected
        assert read.steps.source.tolist() == [GUESSED] + [STATED] * (
            len(read.steps.source) - 1
        )


@pytest.mark.parametrize(
    ("kinds", "stated"),
    [
        (["train"], ""),
        (["skipped"], " more in skipped steps"),
        (["skipped", "evaluation"], " more in evaluation and skipped steps"),
    ],
)
def test_bytes_of_other_steps_are_those_of_their_kinds(
    kinds: list[str], stated: str
) -> None:
    with Trace.open(path("golden-v1.h5")) as trace:
        every = (*kinds, *trace.steps.kind[len(kinds) :])
        other = trace.replace(steps=replace(trace.steps, kind=every))
        said = sentence(other, Path("run.h5"))
    assert (" more in " in said) == bool(stated)
    assert stated in said
