"""The contents of a trace: its figures are the trace's, and gaps are notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.data import path
from moetraffic.report.views.info import info, layout, metadata, site_bytes
from moetraffic.trace import Source, Trace
from moetraffic.trace.merge.merging import Merged
from tests.trace.conftest import make_trace

GOLDEN = path("golden.h5")


@pytest.fixture(scope="module")
def golden() -> Trace:
    return Trace.open(GOLDEN)


def test_bytes_of_an_iteration_are_those_of_its_calls(golden: Trace) -> None:
    rows = {row["call"]: row for row in info(golden).tables.rows("traffic")}  # type: ignore[attr-defined]
    iterations = len(golden.iterations)
    for call in ("dispatch", "dispatch grad"):
        wire = golden.wire(golden.find(phase=call.replace(" ", "_")))
        local = np.trace(wire, axis1=1, axis2=2).sum()
        row = rows[call]
        assert row["calls_per_iteration"] == len(wire) / iterations
        assert row["bytes_per_iteration"] == wire.sum() / iterations
        between = row["bytes_between_ranks_per_iteration"]
        assert between == pytest.approx((wire.sum() - local) / iterations)
    # a ring of 2 ranks sends each buffer once to and fro
    sync = rows["gradient sync"]
    volume = golden.volume(golden.find(operation="all_reduce")).sum() / iterations
    assert sync["bytes_per_iteration"] < volume
    assert sync["bytes_between_ranks_per_iteration"] == sync["bytes_per_iteration"]
    assert list(rows)[:4] == ["dispatch", "combine", "combine grad", "dispatch grad"]


def test_calls_without_bytes_or_members_do_not_count() -> None:
    trace = make_trace(missing=(30, 2))
    calls = trace.find(phase="dispatch", layer=1, kind=None)
    given, between, number = site_bytes(trace, calls)
    (site,) = np.unique(trace.occurrences.site[calls])
    complete = trace.complete(calls)
    assert 0 < number[site] == len(complete) < len(calls)
    wire = trace.wire(complete)
    assert given[site] == wire.sum()
    assert between[site] == wire.sum() - np.trace(wire, axis1=1, axis2=2).sum()
    assert given.sum() == given[site]


def test_modules_and_stages_stand_beside_their_layers(golden: Trace) -> None:
    assert info(golden).screen == ("traffic",)
    sites = [
        replace(s, module=f"decoder.layers.{s.layer}.mlp", stage=s.layer // 2)
        if s.layer >= 0
        else s
        for s in golden.sites
    ]
    result = info(golden.replaced(sites=sites))
    assert result.screen == ("traffic", "layers")
    layers = result.frame("layers")
    assert layers.layer.tolist() == [1, 3]
    assert layers.module.tolist() == ["decoder.layers.1.mlp", "decoder.layers.3.mlp"]
    assert layers.stage.tolist() == [0, 1]
    assert layers.experts.tolist() == [4, 4]
    assert layers.members.tolist() == ["0, 1", "0, 1"]
    text = "\n".join(result.lines(result.screen, width=80))
    assert "decoder.layers.3.mlp" in text


def test_the_weakest_source_names_a_call(golden: Trace) -> None:
    sites = [replace(s, source=Source.ANNOTATED) for s in golden.sites]
    first = next(n for n, s in enumerate(sites) if s.phase == "combine")
    sites[first] = replace(sites[first], source=Source.INFERRED)
    traffic = info(golden.replaced(sites=sites)).frame("traffic").set_index("call")
    assert traffic.named_by["combine"] == "inferred"
    assert traffic.named_by["dispatch"] == "annotated"


def test_the_first_screen_fits_and_says_what_is_recorded(golden: Trace) -> None:
    result = info(golden, GOLDEN)
    lines = list(result.lines(result.screen, width=80))
    assert max(map(len, lines)) <= 80
    assert "(not shown" not in "".join(lines)
    text = " ".join(map(str.strip, lines))
    assert "2 ranks (dp 2, ep 2), gloo, 12 iterations, loss 5.47 to 5.37" in text
    assert "4 layers (MoE 1, 3), hidden 16, 4 experts, topk k=2, dropped" in text
    assert "Routing is recorded of 2 of 2 MoE layers; 13.2% of token copies" in text
    assert all(len(sentence.split()) <= 25 for sentence in result.verdict)
    assert result.data["training_iterations"] == 12
    assert result.data["moe_layers"] == [1, 3]
    every = golden.wire(golden.find(operation="all_to_all"))
    assert result.data["all_to_all_bytes"] == every.sum()


def test_gaps_and_contradictions_are_notes_and_facts(golden: Trace) -> None:
    meta = replace(golden.meta, complete=False, missing="rank 1 was killed: a; b")
    trace = golden.replaced(meta=meta)
    result = info(trace)
    assert result.verdict[0].startswith("Incomplete")
    assert "missing: rank 1 was killed: a; b" in result.notes
    merged = Merged(
        trace=trace,
        missing=("rank 1 was killed",),
        remarks=(),
        contradictions=("bytes differ",),
    )
    result = info(trace, merged=merged, format="csv")
    assert "missing: rank 1 was killed" in result.notes
    assert "contradiction: bytes differ" in result.notes
    assert result.data["contradictions"] == ["bytes differ"]
    assert result.data["format"] == "csv"


def test_a_trace_without_iterations_is_summed_as_a_whole() -> None:
    with Trace.open(path("golden-imported.h5")) as trace:
        result = info(trace)
    (row, _) = result.tables.rows("traffic")  # type: ignore[attr-defined]
    assert row["calls"] == 1
    assert row["bytes"] is None
    assert result.captions["traffic"].startswith("In all")


def test_other_steps_and_missing_routing_are_stated(golden: Trace) -> None:
    kinds = ("evaluation", *golden.steps.kind[1:])
    result = info(golden.replaced(steps=replace(golden.steps, kind=kinds)))
    assert any("1 evaluation steps" in sentence for sentence in result.verdict)
    unrouted = golden.select(golden.find(operation="all_to_all"))
    assert "No routing is recorded" in info(unrouted).verdict[1]


def test_what_nobody_stated_is_not_shown(golden: Trace) -> None:
    """An own loop without a word has no layout, no layers and no seed of 1, 0, -1."""
    assert {"dp", "layers", "experts", "k", "backend"} <= set(metadata(golden))
    nothing = replace(
        golden.meta,
        **{"workload": "", "dp": 1, "layers": 0, "hidden": 0, "experts": 0, "k": 0},
        seed=-1,
    )
    own = golden.replaced(meta=nothing)
    assert not {"dp", "tp", "layers", "experts", "k", "seed"} & set(metadata(own))
    assert layout(own) == "ep 2, dp unknown"


def test_texts_of_a_trace_are_escaped(golden: Trace, tmp_path: Path) -> None:
    hostile = replace(golden.meta, model="<b>\x1b[31m")
    html = info(golden.replaced(meta=hostile))._repr_html_()
    assert "<b>" not in html
    assert "\x1b" not in html
