"""Messages of each dispatcher, counted token by token."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.errors import TraceError
from moetraffic.replay import operations, program
from moetraffic.trace.choices import expert_ids
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.model import TRANSPOSED_PHASES, Group, Meta, Steps
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.what_if.dispatchers import redispatch
from tests.timed import with_times

ROW = 8
EXPERTS = 8


def routed(seed, *, ranks=4, k=3, tokens=6, iterations=2, sampled=True):
    """A trace of one layer, and the experts of all tokens, ``[n, R, S, E]``."""
    rng = np.random.default_rng(seed)
    order = np.argsort(rng.random((iterations, ranks, tokens, EXPERTS)), axis=-1)
    masks = order < k
    layer = RoutedLayer(
        layer=0,
        slot=0,
        iteration=np.arange(iterations),
        demand=ArrayPanel(masks.sum(axis=2).astype(np.int32)),
        dropped=None,
        row_bytes=ROW,
        dtype="float32",
        chosen=expert_ids(masks) if sampled else None,
    )
    groups = [Group(kind="ep", ranks=tuple(range(ranks)))]
    cells = iterations, ranks
    trace = trace_of_routing(
        [layer],
        groups=groups,
        placements=contiguous_placement(groups, [0], EXPERTS),
        meta=Meta(world=ranks, dp=ranks, ep=ranks, experts=EXPERTS, k=k, virtual=True),
        steps=Steps(
            iteration=np.arange(iterations),
            kind=("train",) * iterations,
            loss=np.zeros(cells),
            tokens=np.full(cells, tokens),
            start=np.zeros(cells, np.int64),
            end=np.ones(cells, np.int64),
            source=np.zeros(iterations, np.uint8),
        ),
    )
    return trace, masks


def by_token(mask, dispatcher, per_node):
    """Bytes of each step between world ranks, from the experts of every token."""
    ranks, held = len(mask), EXPERTS // len(mask)
    inter, intra = Counter(), Counter()
    for source, tokens in enumerate(mask):
        place = source % per_node
        for token in tokens:
            copies = [int(e) // held for e in np.flatnonzero(token)]
            if dispatcher == "deduplicated":
                for node in {rank // per_node for rank in copies}:
                    inter[source, node * per_node + place] += ROW
                for rank in set(copies):
                    intra[rank // per_node * per_node + place, rank] += ROW
                continue
            for rank in copies:
                if dispatcher == "plain":
                    intra[source, rank] += ROW
                    continue
                middle = source // per_node * per_node + rank % per_node
                intra[source, middle] += ROW
                inter[middle, rank] += ROW
    return {"inter-node": inter, "intra-node" if per_node < ranks else "": intra}


def sent(trace, iteration, phase):
    """Bytes of each all-to-all of a phase between world ranks, in issue order."""
    found = {}
    for at in trace.find(phase=phase, iterations=range(iteration, iteration + 1)):
        site = trace.sites[trace.occurrences.site[at]]
        ranks = trace.groups[site.group].ranks
        label = site.label if site.label.endswith("-node") else ""
        sums = found.setdefault(label, Counter())
        wire = trace.wire(np.array([at]))[0]
        for i, source in enumerate(ranks):
            for j, destination in enumerate(ranks):
                if wire[i, j]:
                    sums[source, destination] += int(wire[i, j])
    return found


@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 4),
    dispatcher=st.sampled_from(["two-level", "deduplicated"]),
    per_node=st.sampled_from([1, 2]),
)
@settings(max_examples=10, deadline=None)
def test_every_token_goes_where_its_experts_are(seed, k, dispatcher, per_node):
    trace, masks = routed(seed, k=k)
    made = redispatch(trace, dispatcher, ranks_per_node=per_node)
    for iteration, mask in enumerate(masks):
        want = by_token(mask, dispatcher, per_node)
        for phase in ("dispatch", "combine", "combine_grad", "dispatch_grad"):
            back = phase in TRANSPOSED_PHASES
            found = sent(made, iteration, phase)
            for label, sums in want.items():
                turned = {(b, a) if back else (a, b): n for (a, b), n in sums.items()}
                assert found[label] == turned


def test_plain_is_what_the_trace_has_and_padding_is_even():
    trace, masks = routed(3)
    plain = redispatch(trace, "plain")
    padded = redispatch(trace, "padded")
    for phase in ("dispatch", "combine"):
        at = trace.find(phase=phase)
        np.testing.assert_array_equal(
            plain.wire(plain.find(phase=phase)), trace.wire(at)
        )
        rows = masks.sum(axis=2).max(axis=(1, 2))  # of the fullest expert
        for wire, most in zip(padded.wire(padded.find(phase=phase)), rows, strict=True):
            assert (wire == most * ROW * EXPERTS // 4).all()


def test_returning_rows_take_the_steps_in_the_reversed_order():
    trace, _ = routed(1)
    calls = trace.occurrences[trace.occurrences.sequence >= 0]
    at = 10_000 * calls.iteration + 100 * calls.site
    issue = np.repeat(at[:, None], 4, axis=1)
    times = {"issue": issue, "start": issue, "end": issue + 90}
    timed = with_times(trace, {name: {4: values} for name, values in times.items()})
    made = redispatch(timed, "deduplicated", ranks_per_node=2)
    plan = operations(made)
    of_first = program(made, plan, 0)
    order = [
        (plan.sites[s].phase, plan.sites[s].label)
        for s in plan.site[of_first.operation]
        if plan.sites[s].phase in ("dispatch", "combine")
    ][:4]
    assert order == [
        ("dispatch", "inter-node"),
        ("dispatch", "intra-node"),
        ("combine", "intra-node"),
        ("combine", "inter-node"),
    ]
    phases = [plan.sites[s].phase for s in plan.site[of_first.operation]]
    for n in range(1, len(phases)):
        if phases[n] and phases[n] == phases[n - 1]:
            assert of_first.gap_ns[n] == 0  # the second follows the first
        elif plan.iteration[of_first.operation[n]] == 0:
            assert of_first.gap_ns[n] >= 10  # compute between exchanges stays


def test_a_sample_of_tokens_estimates_the_share_of_copies_that_stay():
    trace, _ = routed(5, tokens=400)
    sampled = trace.replaced(
        sites=[replace(s, token_sample=min(s.token_sample, 100)) for s in trace.sites]
    )
    exact = redispatch(trace, "deduplicated", ranks_per_node=2)
    about = redispatch(sampled, "deduplicated", ranks_per_node=2)
    plain = redispatch(trace, "plain")
    totals = []
    for made in (exact, about):
        at = made.find(phase="dispatch")
        sites = np.array([made.sites[s].label for s in made.occurrences.site[at]])
        totals.append(int(made.wire(at[sites == "inter-node"]).sum()))
    copies = int(plain.wire(plain.find(phase="dispatch")).sum())
    assert totals[0] < 0.7 * copies  # what no de-duplication would send
    assert totals[1] == pytest.approx(totals[0], rel=0.05)


@pytest.mark.parametrize(
    ("dispatcher", "options", "says"),
    [
        (
            "fast",
            {},
            "one of plain, padded, by-rank, two-level, deduplicated, not 'fast'",
        ),
        ("two-level", {}, "names none: give --ranks-per-node"),
        ("two-level", {"ranks_per_node": 3}, "they hold 3, 1: change --ranks-per-node"),
        ("deduplicated", {"ranks_per_node": 2}, "capture with --token-sample"),
    ],
)
def test_what_cannot_be_dispatched_is_refused(dispatcher, options, says):
    trace, _ = routed(0, sampled=False)
    with pytest.raises(TraceError, match=says):
        redispatch(trace, dispatcher, **options)
