"""A file of each format version, read for ever."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.times.completion import completion
from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.trace import PHASES, ROUTING, DroppedForm, Trace, file_format
from moetraffic.trace.model import RUN
from moetraffic.trace.panel import take


@pytest.mark.parametrize("version", [1])
def test_golden_file_says_what_it_said(version: int) -> None:
    told = json.loads(path(f"golden-v{version}.json").read_text())
    with Trace.open(path(f"golden-v{version}.h5")) as trace:
        routed = trace.find(operation=ROUTING)
        exchanges = trace.find(operation="all_to_all")
        issue, _, end = trace.times(exchanges)
        first = [trace.sites[trace.occurrences.site[o]] for o in trace.order(1)[:14]]
        assert told == {
            "iterations": len(trace.iterations),
            "occurrences": len(trace.occurrences),
            "sites": len(trace.sites),
            "demand_total": int(trace.demand(routed).sum()),
            "dropped_total": int(trace.dropped(routed).sum()),
            "dispatch_iteration_5_layer_3": trace.matrix(
                5, 3, "dispatch"
            ).values.tolist(),
            "wire_of_combine_iteration_11_layer_1_micro_batch_1": trace.matrix(
                11, 1, "combine", of="wire", micro_batch=1
            ).values.tolist(),
            "loss_of_last_step": trace.steps.loss[-1].tolist(),
            "first_issue_to_last_end_ns": int(end.max() - issue.min()),
            "order_of_rank_1_in_iteration_0": [
                s.phase or s.label or s.operation for s in first
            ],
        }
        assert trace.meta.nodes == ("node-0", "node-0")
        assert trace.meta.router == "topk"
        for iteration in trace.iterations.tolist():
            wire = [trace.matrix(iteration, 3, p, of="wire").values for p in PHASES]
            assert (wire[0] == wire[1].T).all()
            assert (wire[2] == wire[3].T).all()


def test_attributes_of_later_releases_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = file_format.meta_attributes
    monkeypatch.setattr(
        file_format,
        "meta_attributes",
        lambda meta: attributes(meta) | {"later": "words"},
    )
    with Trace.open(path("golden-v1.h5")) as trace:
        trace.save(tmp_path / "later.h5")
        with Trace.open(tmp_path / "later.h5") as later:
            assert later.meta == trace.meta
            assert later.sites == trace.sites


def test_the_sampled_golden_file_says_so() -> None:
    with Trace.open(path("golden-v1.1-sampled.h5")) as trace:
        assert trace.meta.every == 3
        assert trace.iterations.tolist() == [0, 3, 9]
    with Trace.open(path("golden-v1.h5")) as trace:
        assert trace.meta.every == 1


def test_the_golden_file_of_version_1_2_has_the_experts_of_sampled_tokens() -> None:
    with Trace.open(path("golden-v1.2.h5")) as trace:
        assert trace.meta.nodes == ("node-0", "node-1")
        for layer in (1, 3):
            routed = trace.find(operation=ROUTING, layer=layer)
            chosen = trace.choices(routed)
            assert chosen.shape == (24, 2, 24, 6)
            assert (chosen.sum(axis=3) == 2).all()
            assert int((chosen.sum(axis=2) > trace.demand(routed)).sum()) == 0
        first = trace.choices(trace.find(operation=ROUTING, layer=1)[:1])[0, 0, :3]
        assert [row.nonzero()[0].tolist() for row in first] == [[1, 3], [1, 3], [0, 4]]
    with Trace.open(path("golden-v1.1.h5")) as trace:
        assert not any(site.choices for site in trace.sites)


def test_the_golden_file_of_version_1_4_says_which_iterations_are_repeated() -> None:
    with Trace.open(path("golden-v1.4.h5")) as trace:
        assert len(trace.iterations) == 40
        assert trace.meta.repeats_from == 30
    with Trace.open(path("golden-v1.3.h5")) as trace:
        assert trace.meta.repeats_from == -1


def test_the_golden_file_of_version_1_5_has_drops_that_no_hook_sees() -> None:
    with Trace.open(path("golden-v1.5.h5")) as trace:
        routed = trace.find(operation=ROUTING, direction="forward")
        forms = {trace.sites[n].dropped for n in trace.occurrences.site[routed]}
        assert forms == {DroppedForm.UNCOUNTED}
        with pytest.raises(TraceError, match="dropped token copies are unavailable"):
            trace.dropped(routed)
        # the bytes follow the demand nevertheless
        dispatches = trace.find(phase="dispatch")
        rows = trace.wire(dispatches).sum(axis=2) // 64
        assert np.array_equal(rows, trace.demand(routed).sum(axis=2))
    with Trace.open(path("golden-v1.4.h5")) as trace:
        assert {s.dropped for s in trace.sites if s.experts} == {DroppedForm.NONE}


def test_the_golden_file_of_version_1_3_has_the_runs_of_a_replay() -> None:
    with Trace.open(path("golden-v1.3.h5")) as trace:
        runs = trace.runs
        assert runs.dtype == RUN
        assert np.unique(runs["number"]).tolist() == [0, 1, 2]
        assert runs["calls"].tolist() == [3] * 24
        assert runs["transfer_ns"].sum() == 34_165_674
        # the times of the trace are those of one of the runs
        calls = completion(trace)
        sums = [
            np.rint(calls.transfer_s[calls.site == s].sum() * 1e9)
            for s in np.unique(calls.site)
        ]
        shown = runs[(runs["number"] == 2) & (runs["site"] >= 0)]
        np.testing.assert_allclose(shown["transfer_ns"], sums, atol=1)
        # others are not those of these runs
        moved = {w: take(trace.panels[f"end_{w}"], np.arange(24)) for w in (2,)}
        assert len(trace.replace(meta=trace.meta).runs) == 24
        assert not len(trace.replace(end=moved).runs)
    with Trace.open(path("golden-v1.2.h5")) as trace:
        assert not len(trace.runs)
