"""Captured, imported, generated and replayed files, and what they say."""

from __future__ import annotations

import json

import numpy as np
import pytest

from moetraffic.analysis.times.completion import completion
from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.trace import PHASES, ROUTING, DroppedForm, Trace
from moetraffic.trace.choices import expert_mask
from moetraffic.trace.model import RUN
from tests.timed import with_times


def test_golden_file_says_what_it_said() -> None:
    told = json.loads(path("golden.json").read_text())
    with Trace.open(path("golden.h5")) as trace:
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


def test_the_sampled_golden_file_says_so() -> None:
    with Trace.open(path("golden-sampled.h5")) as trace:
        assert trace.meta.every == 3
        assert trace.iterations.tolist() == [0, 3, 9]
    with Trace.open(path("golden.h5")) as trace:
        assert trace.meta.every == 1


def test_a_sample_of_tokens_has_their_experts() -> None:
    with Trace.open(path("golden-token-sample.h5")) as trace:
        assert trace.meta.nodes == ("node-0", "node-1")
        for layer in (1, 3):
            routed = trace.find(operation=ROUTING, layer=layer)
            chosen = expert_mask(trace.chosen(routed), 6)
            assert chosen.shape == (24, 2, 24, 6)
            assert (chosen.sum(axis=3) == 2).all()
            assert int((chosen.sum(axis=2) > trace.demand(routed)).sum()) == 0
        first = expert_mask(
            trace.chosen(trace.find(operation=ROUTING, layer=1)[:1]), 6
        )[0, 0, :3]
        assert [row.nonzero()[0].tolist() for row in first] == [[1, 3], [1, 3], [0, 4]]
    with Trace.open(path("golden-linked.h5")) as trace:
        assert not any(site.token_sample for site in trace.sites)


def test_a_generated_trace_says_which_iterations_are_repeated() -> None:
    with Trace.open(path("golden-generated.h5")) as trace:
        assert len(trace.iterations) == 40
        assert trace.meta.repeats_from == 30
    with Trace.open(path("golden-replayed.h5")) as trace:
        assert trace.meta.repeats_from == -1


def test_drops_that_no_hook_sees_are_unknown() -> None:
    with Trace.open(path("golden-uncounted.h5")) as trace:
        routed = trace.find(operation=ROUTING, direction="forward")
        forms = {trace.sites[n].dropped for n in trace.occurrences.site[routed]}
        assert forms == {DroppedForm.UNCOUNTED}
        with pytest.raises(TraceError, match="dropped token copies are unavailable"):
            trace.dropped(routed)
        # the bytes follow the demand nevertheless
        dispatches = trace.find(phase="dispatch")
        rows = trace.wire(dispatches).sum(axis=2) // 64
        assert np.array_equal(rows, trace.demand(routed).sum(axis=2))
    with Trace.open(path("golden-generated.h5")) as trace:
        assert {s.dropped for s in trace.sites if s.experts} == {DroppedForm.NONE}


def test_a_replayed_trace_has_its_runs() -> None:
    with Trace.open(path("golden-replayed.h5")) as trace:
        runs = trace.runs
        assert runs.dtype == RUN
        assert np.unique(runs["number"]).tolist() == [0, 1, 2]
        assert runs["calls"].tolist() == [3] * 24
        assert runs["transfer_ns"].sum() == 34_165_674
        # the times of the trace are those of one of the runs
        calls = completion(trace)
        sums = [
            np.rint(calls["transfer_s"][calls["site"] == s].sum() * 1e9)
            for s in np.unique(calls["site"])
        ]
        shown = runs[(runs["number"] == 2) & (runs["site"] >= 0)]
        np.testing.assert_allclose(shown["transfer_ns"], sums, atol=1)
        # others are not those of these runs
        end = trace.panels["call_2/end"]
        moved = {"end": {2: end.read(0, end.shape[0])}}
        assert len(trace.replaced(meta=trace.meta).runs) == 24
        assert not len(with_times(trace, moved).runs)
    with Trace.open(path("golden-token-sample.h5")) as trace:
        assert not len(trace.runs)
