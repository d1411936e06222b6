from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.models import train
from moetraffic.models.parallelism.optimizer import AdamW, learning_rate
from moetraffic.patterns import (
    Gating,
    Layout,
    ModelShape,
    Training,
    Workload,
)

Run = Callable[..., list[Any]]

RANKS = 4
SHAPE = ModelShape(layers=4, hidden=16, heads=2, sequence=12, experts=8)
TRAINING = Training(
    iterations=3,
    micro_batch=2,
    accumulation=2,
    warmup=2,
    learning_rate=0.01,
    clip=0.2,  # below every gradient norm here: clipping acts
    dtype="float64",
    seed=3,
)
GATINGS = {
    "padded": Gating(dispatch="padded", capacity_factor=0.75),
    "dropped": Gating(dispatch="dropped", capacity_factor=0.75),
    "dropless": Gating(dispatch="dropless"),
    "switch": Gating(router="switch", k=1, dispatch="dropped", capacity_factor=1.0),
}


def workload(gating: Gating, ep: int, **training: Any) -> Workload:
    return Workload(
        model=SHAPE,
        gating=gating,
        layout=Layout(dp=RANKS, ep=ep),
        training=replace(TRAINING, **training),
    )


@pytest.mark.parametrize(
    ("form", "ep"),
    [
        ("dropless", 4),
        *(
            pytest.param(form, ep, marks=pytest.mark.slow)
            for form, ep in (
                *(("dropless", 1), ("dropless", 2), ("dropped", 4)),
                *(("padded", 2), ("padded", 4), ("switch", 2)),
            )
        ),
    ],
)
def test_a_parallel_run_equals_one_process_with_the_same_shards(
    form: str, ep: int, run_as_one: Run
) -> None:
    work = workload(GATINGS[form], ep)
    ranks = run_as_one(work)
    for rank, result in enumerate(ranks):
        assert result["dp_rank"] == rank
        mine = {expert for _, expert, _ in result["experts"]}
        assert mine == {e for e in range(8) if result["placement"][e] == rank % ep}
    # bit for bit the same on every rank that has it
    for result in ranks[1:]:
        for name, values in result["dense"].items():
            assert torch.equal(values, ranks[0]["dense"][name])
    for result in ranks[ep:]:
        for place, values in result["experts"].items():
            assert torch.equal(values, ranks[place_rank(place, ep)]["experts"][place])
    check_log(work, ranks)


def place_rank(place: tuple[int, int, str], ep: int) -> int:
    return place[1] // (8 // ep)


def check_log(work: Workload, ranks: list[Any]) -> None:
    """The collectives of every iteration stand where they belong."""
    ep, form = work.layout.ep, work.gating.dispatch
    layers = [1, 3]  # every second one
    expected = []
    for _ in range(TRAINING.iterations):
        for _ in range(TRAINING.accumulation):
            for layer in layers:
                expected.append(("routing", layer, "", ""))
                if ep > 1 and form != "padded":
                    expected.append(("all_to_all", layer, "", "count_exchange"))
                if ep > 1:
                    expected.append(("all_to_all", layer, "dispatch", ""))
                    expected.append(("all_to_all", layer, "combine", ""))
            for layer in reversed(layers) if ep > 1 else ():
                expected.append(("all_to_all", layer, "combine_grad", ""))
                expected.append(("all_to_all", layer, "dispatch_grad", ""))
        expected.append(("all_reduce", -1, "", "gradient_sync"))
        if ep < RANKS:
            expected.append(("all_reduce", -1, "", "expert_gradient_sync"))
        if ep > 1:
            expected.append(("all_reduce", -1, "", "gradient_norm"))
    for rank, result in enumerate(ranks):
        log = result["log"]
        names = ("operation", "layer", "phase", "label")
        assert [tuple(e.get(n, "") for n in names) for e in log] == expected
        routed: dict[int, list[Any]] = {layer: [] for layer in layers}
        for entry in log:
            if entry["operation"] == "routing":
                check_routing(work, entry)
                routed[entry["layer"]].append(entry)
            elif entry["operation"] == "all_to_all":
                group = [r for r in range(RANKS) if r // ep == rank // ep]
                assert entry["ranks"] == group
                check_exchange(work, entry, routed[entry["layer"]][-1])


def check_routing(work: Workload, entry: dict[str, Any]) -> None:
    tokens = TRAINING.micro_batch * SHAPE.sequence
    assert sum(entry["demand"]) == work.gating.k * tokens
    assert entry["dropped"] is not None  # zeros where nothing can be dropped
    if work.gating.dispatch == "dropless":
        assert not any(entry["dropped"])


def check_exchange(
    work: Workload, entry: dict[str, Any], routing: dict[str, Any]
) -> None:
    if not entry["phase"]:
        return
    assert entry["shape"][1:] == (SHAPE.hidden,)  # rows are token vectors
    mine = "send" if entry["phase"] in ("dispatch", "combine_grad") else "receive"
    if work.gating.dispatch == "padded":
        assert entry["send"] is entry["receive"] is None
        tokens = TRAINING.micro_batch * SHAPE.sequence
        limit = math.ceil(0.75 * work.gating.k * tokens / SHAPE.experts)
        assert entry["shape"][0] == SHAPE.experts * limit
        return
    load = torch.tensor(routing["demand"]) - torch.tensor(routing["dropped"])
    assert entry[mine] == load.view(work.layout.ep, -1).sum(1).tolist()


@pytest.mark.slow
def test_training_twice_gives_the_same_bits(run_ranks: Run) -> None:
    work = workload(GATINGS["dropless"], 2, dtype="float32")
    ranks = run_ranks("training", RANKS, workload=work.to_json(), times=2)
    for result in ranks:
        first, second = result["losses"]
        assert first == second


def test_a_run_without_ranks_and_its_callbacks() -> None:
    work = Workload(
        model=SHAPE,
        training=replace(TRAINING, dtype="float32", iterations=5),
    )
    recorded: list[tuple[float, int]] = []
    told: list[tuple[int, float]] = []

    class Notes:
        def step(self, *, loss: float, tokens: int) -> None:
            recorded.append((loss, tokens))

    losses = train(
        work,
        Notes(),
        lambda iteration, loss: told.append((iteration, loss)),
        stop=lambda: len(told) == 4,
    )
    assert len(losses) == 4  # stopped
    assert recorded == [(loss, 2 * 2 * 12) for loss in losses]
    assert told == list(enumerate(losses))
    assert losses == train(work)[:4]  # nobody watching changes nothing


@pytest.mark.slow
def test_the_loss_falls_on_real_text() -> None:
    work = Workload(
        model=ModelShape(hidden=64, sequence=64),
        training=Training(iterations=60, learning_rate=3e-3, warmup=10),
    )
    losses = train(work)
    assert losses[0] == pytest.approx(math.log(256), abs=0.4)
    assert sum(losses[-5:]) / 5 < 3.0


def test_bfloat16_trains() -> None:
    plan = replace(TRAINING, dtype="bfloat16", iterations=2)
    losses = train(Workload(model=SHAPE, training=plan))
    assert all(math.isfinite(loss) for loss in losses)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dtype": "int8"}, "dtype is one of float32, float64, bfloat16, not 'int8'"),
        ({"device": "tpu"}, "device is one of cpu, cuda, not 'tpu'"),
        ({"corpus": "/nowhere/at/all"}, "is none of them"),
    ],
)
def test_what_cannot_be_trained(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        train(Workload(model=SHAPE, training=replace(TRAINING, **changed)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA GPU is here")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(LayoutError, match="sees none: use --device cpu"):
        train(Workload(model=SHAPE, training=replace(TRAINING, device="cuda")))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dispatch", ["padded", "dropped", "dropless"])
def test_cuda_trains_as_the_cpu_does(dispatch: str) -> None:
    gating = Gating(dispatch=dispatch)
    cpu, cuda = (
        train(
            Workload(
                model=SHAPE, gating=gating, training=replace(TRAINING, device=device)
            )
        )
        for device in ("cpu", "cuda")
    )
    assert cuda == pytest.approx(cpu, rel=1e-6)


def test_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    plan = Training(iterations=110, warmup=10, learning_rate=1.0)
    rates = [learning_rate(plan, i) for i in range(111)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55)  # half way down the cosine
    assert rates[110] == pytest.approx(0.1)
    assert sorted(rates[10:], reverse=True) == rates[10:]


def test_adamw_is_torchs() -> None:
    shapes = [(3, 4), (5,), (2, 3, 4)]
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    mine = AdamW(ours, weight_decay=0.3)
    peer = torch.optim.AdamW(
        [
            {"params": [theirs[0], theirs[2]], "weight_decay": 0.3},
            {"params": [theirs[1]], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=False,
    )
    for rate in (0.1, 0.05, 0.2):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for part in peer.param_groups:
            part["lr"] = rate
        mine.step(rate)
        peer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
