"""Published layouts among all that fit: ranks, regrets and times."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.data import published
from moetraffic.studies import published_layouts
from moetraffic.studies.published_layouts import modern, sc21


def test_a_rank_counts_the_faster_layouts_that_fit() -> None:
    rows = list(published("megatron_sc21_table1"))
    one = sc21(rows[1])  # 3.6B on 64 GPUs
    estimate = one.found.estimate
    config = estimate.config
    same = (config.tp == 2) & (config.pp == 1) & (config.micro_batch == 16)
    assert same.sum() == 1
    mine = float(estimate.iteration[same][0])
    fits = estimate.memory.total <= 80e9
    assert one.place == (estimate.iteration[fits] < mine).sum()
    assert (np.diff(one.times) >= 0).all()
    assert one.room == 80e9
    # SC'21 has neither ZeRO nor sequence parallelism, and computes all again
    assert {float(x) for x in config.zero} == {0.0}
    assert {float(x) for x in config.recompute} == {2.0}


def test_a_layout_that_needs_more_than_a_gpu_allows_others_as_much() -> None:
    llama = modern(next(iter(published("published_layouts"))))
    needed = llama.found.estimate.memory.total
    at = llama.order[llama.place]
    assert llama.room == float(needed[at]) > 80e9
    assert needed[llama.order].max() == llama.room


@pytest.mark.slow
def test_published_layouts_beat_the_median_layout() -> None:
    table, times = published_layouts.reproduce().tables
    regret = np.array([row[3] for row in table.rows], float)
    median = np.array([row[4] for row in table.rows], float)
    assert len(table.rows) == 15
    # of the 18.4B model 22 and 38%: half of its layouts have uneven stages
    assert (regret < 0.58 * median).all()
    beyond = np.flatnonzero(regret >= median / 2)
    assert ["18.4B on 256" in str(table.rows[at][0]) for at in beyond] in ([], [True])
    assert np.median(regret) < 0.06
    errors = {str(row[0]): float(row[-1]) for row in times.rows}  # type: ignore[arg-type]
    # whether its TFLOP/s count all of the attention matrices is not stated: a published
    # time of 15.3 or 10.9 s; with the paper's eight virtual stages 8% below the latter
    (long,) = [error for name, error in errors.items() if "131,072" in name]
    assert 0.92 * 10.9 / 15.28 - 1 < long < 0
    short = {name: abs(e) for name, e in errors.items() if "131,072" not in name}
    # the largest is Mixtral's, 16.5%
    assert max(short.values()) < 0.17
    # a head is waited for only as far as its stage is the longest: 13% too short
    assert max(short[name] for name in short if "8,192 tokens" in name) < 0.14
    # table 1 of SC'21, to whose even rows two shares are fitted
    assert max(short[name] for name in short if "SC'21" in name) < 0.05
