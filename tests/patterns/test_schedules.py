from __future__ import annotations

from collections import Counter
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as some

from moetraffic.patterns.schedules import (
    Pass,
    chunk_layers,
    handed_on,
    passes,
)


@given(p=some.integers(1, 5), rounds=some.integers(1, 3), v=some.integers(1, 3))
def test_a_schedule_runs_to_its_end(p: int, rounds: int, v: int) -> None:
    v = v if p > 1 else 1
    m = p * rounds
    left = {s: list(passes(s, p, m, v)) for s in range(p)}
    for stage, order in left.items():
        every = [Pass(b, i, c) for b in (0, 1) for i in range(m) for c in range(v)]
        assert sorted(order) == sorted(every), stage
    done: set[tuple[int, bool, int]] = set()  # (place in the pipeline, ...)
    while any(left.values()):
        before = len(done)
        for stage, order in left.items():
            while order:
                one = order[0]
                place = one.chunk * p + stage
                needs = []
                if one.backward:
                    needs.append((place, False, one.micro_batch))
                if handed_on(one, stage, p, v)[0] is not None:
                    step = 1 if one.backward else -1
                    needs.append((place + step, one.backward, one.micro_batch))
                if not set(needs) <= done:
                    break
                done.add((place, one.backward, one.micro_batch))
                order.pop(0)
        assert len(done) > before, "stages wait for each other"


@settings(max_examples=10, deadline=None)
@given(p=some.integers(2, 5), rounds=some.integers(1, 3), v=some.integers(1, 4))
def test_neighbors_and_the_wrap_around(p: int, rounds: int, v: int) -> None:
    m = p * rounds
    expected: Counter[tuple[int, int]] = Counter()
    for stage in range(p - 1):  # v m each way an adjacent pair
        expected[stage, stage + 1] += v * m
        expected[stage + 1, stage] += v * m
    expected[p - 1, 0] += (v - 1) * m
    expected[0, p - 1] += (v - 1) * m
    sent: Counter[tuple[int, int]] = Counter()
    for stage in range(p):
        behind = (handed_on(one, stage, p, v)[1] for one in passes(stage, p, m, v))
        sent.update(pair for pair in behind if pair is not None)
    assert sent == +expected


def test_1f1b_holds_no_more_than_the_stages_behind() -> None:
    for stage in range(4):
        held = peak = 0
        for one in passes(stage, 4, 8):
            held += -1 if one.backward else 1
            peak = max(peak, held)
        assert peak == 4 - stage


def test_chunks_go_round() -> None:
    assert chunk_layers(8, 2, 2) == (range(2), range(2, 4), range(4, 6), range(6, 8))
    uneven = chunk_layers(7, 2, 2)
    assert list(chain(*uneven)) == list(range(7))
    assert [len(c) for c in uneven] == [2, 2, 2, 1]
