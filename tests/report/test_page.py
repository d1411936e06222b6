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

from moetraffic.analysis.exchange import exchanges
from moetraffic.data import path
from moetraffic.fabric import Network
from moetraffic.report.chart import Chart, Missing
from moetraffic.report.page import Content, content, document
from moetraffic.report.page.document import data_text
from moetraffic.report.page.matrices import Matrices, matrices, samples
from moetraffic.report.page.plotly import packed
from moetraffic.result import Result
from moetraffic.text import html_text
from moetraffic.trace import Trace


def parts(of: Content) -> list[Any]:
    return [p for s in of.sections for p in s.parts]


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
    whole = []
    for block in blocks:
        data = zlib.decompress(base64.b64decode(block["data"]))
        kind = np.dtype(block["dtype"]).newbyteorder("<")
        shape = block["count"], len(block["rows"]), len(block["columns"])
        made = np.frombuffer(data, kind).astype(np.int64).reshape(shape)
        whole.append(made * block["factor"])
    return whole


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
    assert phases == {"dispatch"}  # the others are equal, or the transpose


def test_a_long_run_has_some_iterations_and_the_page_says_so() -> None:
    with Trace.open(path("run-top2-balanced.h5")) as trace:
        located = exchanges(trace, [], layers=[0])
        found = matrices(samples(trace, located))
        assert found is not None
        assert found.source.startswith("60 of 200 iterations")
        for block, cells in zip(found.blocks, inflated(found.blocks), strict=True):
            assert block["iterations"][::59] == [0, 199]
            if block["of"] == "wire":
                whole = trace.matrix(199, 0, "dispatch", of="wire").values
                assert np.array_equal(cells[-1], whole)


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
    halved, same = (p for p in parts(shown) if getattr(p, "verb", "") == "compare")
    calls = halved.frame("time_ratios")
    assert np.allclose(calls.ratio[calls.measure == "call"], 0.5, atol=1e-3)
    # the very same run is at no distance from itself, and as fast
    assert same.data["identical"]
    calls = same.frame("time_ratios")
    assert np.allclose(calls.ratio[calls.measure == "call"], 1.0)


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


def test_every_figure_says_its_source_and_units(shown: Content) -> None:
    charts = [p for p in parts(shown) if isinstance(p, Chart)]
    assert {c.key for c in charts} >= {
        *("load", "evenness", "loads", "timeline", "complexity"),
        *("bottleneck", "links"),
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
    assert len(data) >= 10
    for _, text in data:
        json.loads(text)
    assert len(page) < 7_000_000


def test_the_analysis_stands_below_the_first_chart(shown: Content) -> None:
    first, result, *_ = parts(shown)
    assert first.key == "load"
    assert isinstance(result, Result)
    page = document(shown)
    begin = page.index('id="figure-load"')
    at = [page.index(html_text(text), begin) for text in result.verdict]
    assert at == sorted(at)
    heads = {part.head for part in parts(shown) if isinstance(part, Result)}
    assert {"Experts", "Bursts", "Metadata"} <= heads


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
    keys = {"timeline", "bottleneck"}
    charts = [
        {
            part.key: part.source
            for part in parts(found)
            if isinstance(part, Chart) and part.key in keys
        }
        for found in (some, part)
    ]
    assert charts[0] == charts[1]
    assert set(charts[0]) == keys
    tables = [
        [p.to_dict() for p in parts(found) if isinstance(p, Result)][1:3]
        for found in (some, part)
    ]
    assert tables[0] == tables[1]
