"""The call index of a gradient is that of its forward call."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.trace.merge.merging import merge_records

from .conftest import Rank

STEPS = 3


def bytes_by_micro_batch(
    links: tuple[bool, bool], *, shared: bool = False
) -> tuple[list[int], list[int]]:
    """Bytes of two micro-batches' combines and of their gradients, in reverse order."""
    ranks = [Rank(number=n, world=2) for n in range(2)]
    for rank, linked in zip(ranks, links, strict=True):
        for step in range(STEPS):
            for phase, direction, order in (
                ("combine", "forward", (0, 1)),
                ("combine_grad", "backward", (1, 0)),
            ):
                for m in order:
                    rank.exchange(
                        (0, 1), [m + 1, m + 1], [m + 1, m + 1],
                        phase=phase, layer=0, direction=direction,
                        dtype="float32", row_bytes=4, label=(step, "", -1, ""),
                        link=(10 * step + m * (not shared)) if linked else -1,
                    )  # fmt: skip
    records = [rank.record() for rank in ranks]
    for record, rank in zip(records, ranks, strict=True):
        record.calls["iteration"] = [label[0] for label in rank.truth]
    trace = merge_records(records, "made").trace
    found = []
    for phase in ("combine", "combine_grad"):
        matrices = [trace.matrix(1, 0, phase, micro_batch=m, of="wire") for m in (0, 1)]
        found.append([int(np.sum(m.values)) for m in matrices])
    return found[0], found[1]


def test_a_gradient_has_the_micro_batch_of_its_forward_call() -> None:
    assert bytes_by_micro_batch((True, True)) == ([16, 32], [16, 32])


@pytest.mark.parametrize("links", [(False, False), (True, False)])
def test_without_the_links_of_all_ranks_the_order_is_kept(
    links: tuple[bool, bool],
) -> None:
    assert bytes_by_micro_batch(links) == ([16, 32], [32, 16])


def test_a_link_of_several_calls_is_ambiguous() -> None:
    assert bytes_by_micro_batch((True, True), shared=True) == ([16, 32], [32, 16])
