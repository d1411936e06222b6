"""``pattern`` lists every collective, ``estimate`` sums them: bytes by kind are equal.

Layouts are drawn anew in each run; those that either refuses are drawn again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import preset
from moetraffic.patterns.calls import Pattern, megatron_pattern
from moetraffic.patterns.layout import (
    CONTEXTS,
    DISPATCHERS,
    RECOMPUTE,
    SCHEDULES,
    Layout,
)
from moetraffic.patterns.rules import violations
from moetraffic.timemodel import traffic
from moetraffic.workload.model import broken_rules

KINDS = {
    **{"TP": "tp", "PP": "pp", "DP": "dp", "EP": "ep", "CP": "cp"},
    "EmbTableSync": "embedding",
}
ENDS = ("embedding", "head", "cross_entropy", "norm_gradient_sync")
MODELS = (
    *("gpt-350m", "gpt2-large", "megatron-18.4b", "llama-3-8b", "llama-3-70b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b"),
    *("gpt-moe-760m", "bert-large", "t5-large", "switch-base-8", "deepseek-v3"),
)
MIXED = ("gpt-moe-760m", "deepseek-v2-lite", "deepseek-v3", "qwen1.5-moe-a2.7b")
"""Models whose dense first layers, or every k-th layer with experts, are drawn."""
FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,  # a call's size is a member's input
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1,
}


def sent(pattern: Pattern) -> Counter[str]:
    """Bytes by kind that a rank sends by ring algorithms: of TP, DP and every other
    kind of traffic the rank of the stage that sends most of it."""
    stages = [of_stage(pattern, stage) for stage in range(pattern.layout.pp)]
    found: Counter[str] = Counter()
    for kinds in (("tp", "ends"), ("dp", "edp"), ("pp",), ("ep",), ("cp",)):
        most = max(stages, key=lambda one: sum(one[kind] for kind in kinds))
        found |= Counter({kind: most[kind] for kind in kinds if most[kind]})
    most = max(stages, key=lambda one: one["embedding"])
    return found | Counter({"embedding": most["embedding"]})


def of_stage(pattern: Pattern, stage: int) -> Counter[str]:
    """Bytes that a rank of a stage sends, by kind."""
    found: Counter[str] = Counter()
    for event in pattern.programs[stage]:
        call = event.call
        message = call.operation == "send_recv" and not call.shift
        if call.traffic == "control" or (message and call.peers[0] != stage):
            continue
        ranks = len(pattern.groups(call.group, stage)[0])
        kind = KINDS[call.traffic]
        if call.group.startswith("edp"):
            kind = "edp"
        elif call.label in ENDS and kind == "tp":
            kind = "ends"
        found[kind] += FACTOR[call.operation](ranks) * call.size
    return found


def summed(config: Layout) -> Counter[str]:
    found: Counter[str] = Counter()
    for calls in traffic(config):
        found[calls.kind] += float(np.where(calls.calls > 0, calls.wire, 0.0))
    return found


OF_SHAPE = ("model", "layers", "moe_every", "moe_first", "mtp")


def drawn(chance: random.Random) -> dict[str, Any]:
    pp = chance.choice((1, 1, 2, 4))
    zero = chance.choice((0, 1, 2) if pp > 1 else (0, 0, 1, 2, 3))
    schedule = chance.choice(("1f1b", *SCHEDULES)) if pp > 1 else "1f1b"
    cp = chance.choice((1, 1, 1, 2) if zero == 3 else (1, 1, 1, 2, 4))
    return {
        "model": chance.choice(MODELS),
        "layers": chance.choice((0, 0, 7, 10, 13, 21)),
        "moe_every": chance.choice((1, 2, 3)),
        "moe_first": chance.choice((0, 1, 3)),
        "tp": chance.choice((1, 1, 2, 4, 8)),
        "pp": pp,
        "dp": chance.choice((1, 2, 4, 8)),
        "cp": cp,
        "ep": chance.choice((1, 1, 2, 4, 8)),
        "etp": chance.choice((0, 0, 1)),
        "virtual": chance.choice((1, 2)) if pp > 1 and schedule == "1f1b" else 1,
        "micro_batch": chance.choice((1, 2, 4)),
        "accumulation": 8 if pp > 1 else chance.choice((1, 2, 4)),
        "zero": zero,
        "sequence_parallel": chance.random() < 0.5,
        "recompute": chance.choice(("none", "full", *RECOMPUTE)),
        "scatter_gather": chance.random() < 0.5,
        "context": chance.choice(CONTEXTS),
        "embedding_layers": chance.choice((0, 1)) if pp > 1 else 0,
        "head_layers": chance.choice((0, 1, 2)) if pp > 1 else 0,
        "schedule": schedule,
        "shard": chance.choice((0, 2, 4)) if zero and schedule != "dualpipe" else 0,
        "mtp": chance.choice((0, 0, 1, 2)),
        "dispatch_dtype": chance.choice(("", "float8")),
        "dispatcher": chance.choice(("plain", *DISPATCHERS)),
        "node_limit": chance.choice((0, 0, 2)),
        "gpus_per_node": chance.choice((0, 2, 4, 8)),
    }


def both(of: dict[str, Any]) -> tuple[Counter[str], Counter[str]] | None:
    """Bytes of the pattern and of the time model; None where it cannot be."""
    known = preset(of["model"])
    named = {name: value for name, value in of.items() if name not in OF_SHAPE}
    shape = replace(known.model, mtp=of["mtp"])
    if not shape.encoder_layers and of["layers"]:
        shape = replace(shape, layers=of["layers"])
    if of["model"] in MIXED:
        shape = replace(shape, moe_every=of["moe_every"], moe_first=of["moe_first"])
    if broken_rules(shape):
        return None
    try:
        plan = Layout(**named)
        config = Layout.of(shape, plan, known.gating)
        if violations(config):
            return None
        pattern = megatron_pattern(shape, plan, known.gating)
    except LayoutError:
        return None
    return sent(pattern), summed(config)


@pytest.mark.parametrize("number", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_bytes_by_kind_are_equal(number: int) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    chance, tried = random.Random(seed), 0
    while tried < number:
        of = drawn(chance)
        found = both(of)
        if found is None:
            continue
        tried += 1
        listed, total = found
        for kind in {*listed, *total}:
            assert total[kind] == pytest.approx(listed[kind], rel=1e-12), (
                f"{kind} of {of}, seed {seed}"
            )


@pytest.mark.parametrize("ranks", [24, 384, 1120])
@pytest.mark.parametrize("model", ["gpt-350m", "deepseek-v2-lite"])
def test_fully_sharded_tensors_are_padded_to_many_ranks_in_both(
    model: str, ranks: int
) -> None:
    """Norms, biases, routers and a vocabulary of no multiple of the ranks."""
    known = preset(model)
    plan = Layout(dp=ranks, zero=3, accumulation=2)
    listed = of_stage(megatron_pattern(known.model, plan, known.gating), 0)
    total = summed(Layout.of(known.model, plan, known.gating))
    assert total["dp"] == pytest.approx(listed["dp"], rel=1e-12)
    config = Layout.of(known.model, plan, known.gating)
    flat = (4 + 2 * 2) * 2 * float(config.held) * (ranks - 1) / ranks
    assert 1 < listed["dp"] / flat < 1.2


def test_what_one_refuses_of_experts_under_tensor_parallelism_so_does_the_other() -> (
    None
):
    of = {**drawn(random.Random(0)), "model": "mixtral-8x7b", "tp": 2, "dp": 2}
    of |= {"pp": 1, "virtual": 1, "cp": 1, "ep": 2, "etp": 0, "zero": 0}
    of |= {"schedule": "1f1b", "shard": 0, "mtp": 0, "dispatcher": "plain"}
    of |= {"node_limit": 0, "layers": 0}
    assert both({**of, "sequence_parallel": True}) is not None
    assert both({**of, "sequence_parallel": False}) is None
    wrong = violations(Layout(model=preset("mixtral-8x7b").model))
    assert any("k is 0" in rule for rule, _ in wrong)
