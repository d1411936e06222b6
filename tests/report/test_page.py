"""The page's content: its numbers are the trace's, and what is lacking says why."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moetraffic.fabric.named import Network
from moetraffic.report.chart import Chart, Missing
from moetraffic.report.page import Content, content, document, highlights
from moetraffic.report.page.document import data_text
from moetraffic.report.page.matrices import Matrices
from moetraffic.report.page.plotly import packed
from moetraffic.tables import Table
from moetraffic.trace import Trace


def parts(of: Content) -> list[Any]:
    return [*of.headline, *(p for s in of.sections for p in s.parts)]


def chart(of: Content, key: str) -> Chart:
    return next(p for p in parts(of) if isinstance(p, Chart) and p.key == key)


def unpacked(told: Any) -> np.ndarray[Any, Any]:
    """What a browser makes of packed numbers."""
    if isinstance(told, list):
        return np.array([np.nan if v is None else v for v in told])
    data = base64.b64decode(told["bdata"])
    flat = np.frombuffer(data, np.dtype(told["dtype"]).newbyteorder("<"))
    shape = told.get("shape")
    return flat.reshape([int(n) for n in shape.split(",")]) if shape else flat


def inflated(blocks: tuple[dict[str, Any], ...]) -> list[np.ndarray[Any, Any]]:
    """The matrices of all blocks, as the page's script makes them."""
    whole: list[np.ndarray[Any, Any]] = []
    for block in blocks:
        rows, columns = len(block["rows"]), len(block["columns"])
        if "base" not in block:
            data = zlib.decompress(base64.b64decode(block["data"]))
            kind = np.dtype(block["dtype"]).newbyteorder("<")
            made = np.frombuffer(data, kind).astype(np.int64)
            made = made.reshape(block["count"], rows, columns)
        else:
            made = whole[block["base"]]
            if "held" in block:
                summed = np.zeros((*made.shape[:2], made.shape[1]), np.int64)
                np.add.at(summed, (slice(None), slice(None), block["held"]), made)
                made = summed
            if block.get("transpose"):
                made = made.transpose(0, 2, 1)
        whole.append(made)
    return [w * b["factor"] for w, b in zip(whole, blocks, strict=True)]


def test_every_matrix_of_the_page_is_the_traces(golden: Trace, shown: Content) -> None:
    (found,) = [p for p in parts(shown) if isinstance(p, Matrices)]
    kinds = set()
    for block, cells in zip(found.blocks, inflated(found.blocks), strict=True):
        kinds.add((block["layer"], block["of"], block["phase"]))
        assert block["iterations"] == golden.iterations.tolist()
        for iteration, values in zip(block["iterations"], cells, strict=True):
            if block["of"] == "wire":
                told = golden.matrix(
                    iteration, block["layer"], block["phase"], of="wire"
                ).values
            else:
                at = golden.find(
                    operation="routing",
                    layer=block["layer"],
                    direction="forward",
                    iterations=range(iteration, iteration + 1),
                )
                told = golden.demand(at).sum(axis=0)
            assert np.array_equal(values, told)
    phases = {phase for _, of, phase in kinds if of == "wire"}
    assert phases == {"dispatch", "combine", "combine_grad", "dispatch_grad"}
    # what follows from the dispatch is not stored again
    assert sum("data" in b for b in found.blocks) < len(found.blocks)


def test_few_bytes_leave_iterations_out_and_the_page_says_so(
    golden: Trace, fabric: Network
) -> None:
    few = content(golden, fabric, most_bytes=300)
    (found,) = [p for p in parts(few) if isinstance(p, Matrices)]
    count = found.blocks[0]["count"]
    assert 1 <= count < len(golden.iterations)
    assert found.source.startswith(f"{count} of {len(golden.iterations)} iterations")
    for block, cells in zip(found.blocks, inflated(found.blocks), strict=True):
        if block["of"] == "wire":
            last = block["iterations"][-1]
            told = golden.matrix(last, block["layer"], block["phase"], of="wire")
            assert np.array_equal(cells[-1], told.values)


def test_loads_are_shares_of_the_demand(golden: Trace, shown: Content) -> None:
    for panel in chart(shown, "loads").panels:
        layer = int(panel.name[0].split()[1])
        share = panel.series[0].z
        assert np.allclose(share.sum(axis=0), 100.0, atol=1e-3)
        found = golden.find(operation="routing", layer=layer, direction="forward")
        total = golden.demand(found).sum(axis=(0, 1))
        heaviest = int(total.argmax())
        assert share.mean(axis=1)[heaviest] == pytest.approx(
            share.mean(axis=1).max(), rel=0.2
        )


def test_half_of_the_time_is_a_ratio_of_a_half(shown: Content) -> None:
    panels = {p.name[0]: p for p in chart(shown, "replay-ratios").panels}
    points = panels["call"].series[-1].x
    assert np.allclose(points, 0.5, atol=1e-3)
    # the very same run is at no distance from itself, and as fast
    for panel in chart(shown, "comparison-distances").panels:
        assert np.allclose(panel.series[0].x, 0.0)
    same = {p.name[0]: p for p in chart(shown, "comparison-ratios").panels}
    assert np.allclose(same["call"].series[-1].x, 1.0)


def test_what_is_unavailable_has_no_card_and_no_entry(
    golden: Trace, fabric: Network
) -> None:
    page = document(content(golden, fabric))
    assert 'href="#comparison"' not in page
    assert 'href="#replay"' not in page
    assert 'class="card absent"' not in page
    end = page.index('id="unavailable"')
    assert page.index("no second trace was given") > end
    assert page.index("Forecast accuracy by horizon") > end


def test_a_transfer_over_its_bound_is_the_rate_of_a_port_over_busbw(
    golden: Trace, shown: Content
) -> None:
    title = "Bus bandwidth, lower bound and waiting of the all-to-alls"
    (table, *_) = [p for p in parts(shown) if isinstance(p, Table) and p.title == title]
    assert "100 Gbps" in table.notes[0]
    calls = table.rows[0]
    assert calls[0] == "operation all_to_all"
    captured, replayed, over, over_replayed, *waiting = calls[1:]
    assert captured * over == pytest.approx(12.5)
    assert replayed * over_replayed == pytest.approx(12.5)
    assert all(0 <= share <= 1 for share in waiting)


def test_what_nobody_told_is_not_shown(golden: Trace) -> None:
    """An own loop without a word has no layout, no layers and no seed of 1, 0, -1."""
    told = {row[0] for row in highlights.about({"run": golden}).rows}
    assert {"dp", "layers", "experts", "k", "order"} <= told
    nothing = replace(
        golden.meta,
        **{"workload": "", "dp": 1, "layers": 0, "hidden": 0, "experts": 0, "k": 0},
        seed=-1,
    )
    own = {
        row[0] for row in highlights.about({"run": golden.replaced(meta=nothing)}).rows
    }
    assert own == told - {
        *("dp", "tp", "pp", "cp", "order"),
        *("layers", "hidden", "experts", "k", "seed"),
    }


def test_every_figure_says_its_source_and_units(shown: Content) -> None:
    charts = [p for p in parts(shown) if isinstance(p, Chart)]
    assert {c.key for c in charts} >= {
        *("evenness", "loads", "timeline", "complexity", "convergence"),
        *("bottleneck", "links", "circuits", "replay-ratios", "comparison-distances"),
    }
    for each in charts:
        assert len(each.source) > 40
        assert each.panels
        assert len({p.name for p in each.panels}) == len(each.panels)
        assert all(len(p.name) == len(each.choices) for p in each.panels)
        assert all(p.x.label for p in each.panels)
    keys = [p.key for p in parts(shown) if hasattr(p, "key")]
    assert len(set(keys)) == len(keys)


def test_what_cannot_be_computed_says_why(golden: Trace, fabric: Network) -> None:
    virtual = golden.replaced(meta=replace(golden.meta, virtual=True))
    alone = content(virtual, fabric, iterations=range(0, 6))
    lacking = {p.title: p.reason for p in parts(alone) if isinstance(p, Missing)}
    assert "virtual" in lacking["Spectrum of the on-off pattern"]
    # one process for all ranks has times, but not those of a run
    assert "virtual" in lacking["Time breakdown of a training step"]
    assert not any(tile.what.startswith("an iteration") for tile in alone.tiles)
    assert "--replay" in lacking["Replay fidelity"]
    assert "second trace" in lacking["Comparison"]
    ahead = lacking["Forecast accuracy by horizon"]
    assert "iterations" in ahead
    page = document(alone)
    for reason in lacking.values():
        assert reason.split()[-1].rstrip(".") in page


@pytest.mark.parametrize("operation", ["all_reduce", "barrier"])
def test_a_trace_without_exchanges_has_a_page_too(
    golden: Trace, fabric: Network, operation: str
) -> None:
    few = content(golden.select(golden.find(operation=operation)), fabric)
    lacking = {p.title: p.reason for p in parts(few) if isinstance(p, Missing)}
    assert "no expert exchange" in lacking["Traffic matrices"]
    assert all(lacking.values())
    # gradients load links all the same
    assert ("Busy time of links" in lacking) == (operation == "barrier")


def test_text_of_a_trace_is_no_part_of_the_pages_code(shown: Content) -> None:
    page = document(shown)
    assert "window.hostile" in page
    assert "<script>window.hostile" not in page
    assert data_text({"a": "</script><b>", "b": float("nan")}) == (
        '{"a":"\\u003c/script>\\u003cb>","b":null}'
    )


def test_the_page_names_no_address(shown: Content) -> None:
    page = document(shown)
    assert "default-src 'none'" in page
    own = re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.S)
    assert not re.search(r"""(?:src|href)=["'](?!#)""", own)
    assert "http:" not in own
    assert "https:" not in own
    # every figure's data can be read
    data = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</s', own)
    assert len(data) >= 12
    for _, text in data:
        json.loads(text)
    assert len(page) < 7_000_000


def test_tables_have_as_many_cells_as_heads(shown: Content) -> None:
    tables = [p for p in parts(shown) if isinstance(p, Table)]
    assert {t.title for t in tables} >= {
        *("Layers", "On-off statistics", "Metadata of the traces"),
        "Times of common calls: this run and replay",
    }
    for each in tables:
        assert all(len(row) == len(each.columns) for row in each.texts())


@settings(max_examples=10)
@given(arrays(np.int64, st.integers(64, 90), elements=st.integers(-(2**31), 2**31 - 1)))
def test_packed_whole_numbers_come_back(values: np.ndarray[Any, Any]) -> None:
    assert np.array_equal(unpacked(packed(values)), values)


def test_every_chart_is_of_the_iterations_that_were_asked_for(
    golden: Trace, fabric: Network
) -> None:
    """Also those of calls over time, of links and of a second run."""
    some = content(golden, fabric, other=golden, iterations="6:")
    alone = golden.select(np.flatnonzero(golden.occurrences.iteration >= 6))
    part = content(alone, fabric, other=alone)
    keys = {"timeline", "bottleneck", "comparison-ratios", "comparison-distances"}
    charts = [
        {
            one.key: one.source
            for one in (*found.headline, *(p for s in found.sections for p in s.parts))
            if isinstance(one, Chart) and one.key in keys
        }
        for found in (some, part)
    ]
    assert charts[0] == charts[1]
    assert {"timeline", "comparison-distances"} <= set(charts[0])
    assert some.tiles == part.tiles
