"""A lossy network: what is lost, and that nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.models.layers.lossy_network import LossyNetwork
from moetraffic.models.virtual_training import VirtualTraining
from moetraffic.patterns import (
    Dropping,
    Gating,
    Layout,
    ModelShape,
    Training,
    Workload,
)
from moetraffic.workload.training import PATTERNS

ROWS, WIDTH = 4096, 128  # a row has 512 bytes: 8 of them fill a packet


def carried(
    dropping: Dropping, *, messages: int = 16, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Ones over the network, an eighth of the rows stay on their rank."""
    network = LossyNetwork(dropping, seed=1)
    rows = torch.ones(ROWS, WIDTH) if rows is None else rows
    message = torch.arange(ROWS) % messages
    about = {
        "message": message,
        "crosses": message % 8 != 0,
        "weight": torch.rand(ROWS, generator=torch.Generator().manual_seed(3)),
    }
    arrived = network.carry(rows, "combine", 2, **about)
    crossing = int(about["crosses"].sum()) * WIDTH
    if dropping.share:
        assert network.crossed == crossing
        assert network.lost == int((arrived == 0).sum())
    return arrived, about


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_share_is_lost_of_what_crosses_and_of_nothing_else(pattern: str) -> None:
    plan = Dropping(pattern=pattern, share=0.3, packet_bytes=512)
    arrived, about = carried(plan, messages=1024)
    crosses = about["crosses"]
    assert (arrived[~crosses] == 1).all()
    assert set(arrived.unique().tolist()) == {0.0, 1.0}
    lost = 1 - arrived[crosses].mean().item()
    # 3,584 rows; a message has 4: five standard deviations
    units = {"packets": 3584, "messages": 896, "lowest_weight": 1e12}
    assert lost == pytest.approx(0.3, abs=5 * (0.21 / units[pattern]) ** 0.5 + 2e-4)


def test_what_shares_a_packet_shares_its_fate() -> None:
    arrived, about = carried(Dropping(share=0.2, packet_bytes=4096), messages=4)
    fates = 0
    for message in range(4):
        mine = arrived[about["message"] == message]  # [1024, 128]: 128 packets
        packets = mine.reshape(128, 8 * WIDTH)
        assert ((packets == 0).all(1) | (packets == 1).all(1)).all()
        fates += int((packets == 0).all(1).sum())
    assert 0 < fates < 3 * 128


def test_a_packet_smaller_than_a_row_loses_a_part_of_it() -> None:
    arrived, _ = carried(Dropping(share=0.5, packet_bytes=128))
    quarters = arrived.reshape(ROWS, 4, 32)
    assert ((quarters == 0).all(2) | (quarters == 1).all(2)).all()
    assert (quarters.mean(2).std(1) > 0).any()  # some rows are torn


def test_a_message_is_lost_whole() -> None:
    arrived, about = carried(Dropping(pattern="messages", share=0.5), messages=64)
    for message in range(64):
        mine = arrived[about["message"] == message]
        assert mine.unique().numel() == 1


def test_the_lowest_weights_go_first() -> None:
    arrived, about = carried(Dropping(pattern="lowest_weight", share=0.25))
    crosses, weight = about["crosses"], about["weight"]
    lost = (arrived == 0).all(1)
    assert int(lost.sum()) == round(0.25 * int(crosses.sum()))
    assert weight[lost].max() <= weight[crosses & ~lost].min()


def test_compensation_keeps_the_mean() -> None:
    arrived, about = carried(
        Dropping(share=0.2, compensate=True, packet_bytes=512), messages=1024
    )
    crosses = about["crosses"]
    assert set(arrived[crosses].unique().tolist()) == {0.0, 1.25}
    assert (arrived[~crosses] == 1).all()


@pytest.mark.parametrize("site", ["combine", "combine_grad"])
def test_a_loss_on_the_way_forth_is_none_on_the_way_back(site: str) -> None:
    rows = torch.ones(ROWS, WIDTH, requires_grad=True)
    network = LossyNetwork(Dropping(site=site, share=0.4), seed=1)
    message = torch.arange(ROWS) % 16
    arrived = network.carry(
        rows,
        "combine",
        2,
        message=message,
        crosses=message % 8 != 0,
        weight=torch.ones(ROWS),
    )
    arrived.sum().backward()
    assert rows.grad is not None
    forth, back = (arrived == 0).any().item(), (rows.grad == 0).any().item()
    assert (forth, back) == ((True, False) if site == "combine" else (False, True))


def test_another_phase_and_no_share_change_nothing() -> None:
    rows = torch.randn(ROWS, WIDTH)
    assert carried(Dropping(share=0.0), rows=rows)[0] is rows
    network = LossyNetwork(Dropping(site="dispatch", share=0.5), seed=1)
    ones = torch.ones(ROWS, dtype=torch.int64)
    same = network.carry(
        rows, "combine", 0, message=ones, crosses=ones.bool(), weight=ones
    )
    assert same is rows


def test_each_step_layer_and_seed_loses_elsewhere_but_always_the_same() -> None:
    def lost(seed: int, iteration: int, layer: int) -> torch.Tensor:
        network = LossyNetwork(Dropping(share=0.5), seed)
        network.iteration = iteration
        message = torch.arange(ROWS) % 16
        return network.carry(
            torch.ones(ROWS, WIDTH),
            "combine",
            layer,
            message=message,
            crosses=torch.ones(ROWS, dtype=torch.bool),
            weight=torch.ones(ROWS),
        )

    first = lost(0, 0, 0)
    assert (first == lost(0, 0, 0)).all()
    for other in (lost(1, 0, 0), lost(0, 1, 0), lost(0, 0, 1)):
        assert (first != other).any()


WORK = Workload(
    model=ModelShape(layers=2, hidden=32, heads=2, sequence=32, experts=4),
    gating=Gating(),
    layout=Layout(dp=4, ep=2),
    training=Training(iterations=3, micro_batch=2, accumulation=2, virtual=True),
)


def trained(**dropping: float | str) -> tuple[list[list[float]], VirtualTraining]:
    work = replace(WORK, dropping=Dropping(**dropping))  # type: ignore[arg-type]
    training = VirtualTraining(work)
    return [training.iterate(i) for i in range(3)], training


def test_training_on_a_lossy_network() -> None:
    whole, _ = trained()
    assert trained()[0] == whole
    for site in ("dispatch", "combine", "dispatch_grad", "combine_grad"):
        lossy, training = trained(site=site, share=0.5, packet_bytes=128)
        assert training.network is not None
        assert 0.3 < training.network.lost / training.network.crossed < 0.7
        assert lossy[0] == whole[0] if site.endswith("grad") else lossy[0] != whole[0]
        assert lossy[2] != whole[2]


def test_gradients_lost_rank_by_rank() -> None:
    whole, _ = trained()
    # nothing is lost by so small a share: ranks one by one are the ranks together
    same, training = trained(site="gradient_sync", share=1e-12)
    assert training.network is not None
    assert training.network.lost == 0
    for mine, its in zip(same, whole, strict=True):
        assert mine == pytest.approx(its, rel=1e-4)
    _, training = trained(site="gradient_sync", share=0.3)
    network = training.network
    assert network is not None
    dense = training.updates.dense.flat.numel()
    assert network.crossed == 3 * 4 * dense  # steps, ranks
    assert 0.2 < network.lost / network.crossed < 0.4


def test_evaluation_loses_nothing() -> None:
    _, lossy = trained(site="combine", share=0.9)
    network = lossy.network
    assert network is not None
    before = network.lost
    assert 1 < lossy.evaluate(4) < 6
    assert network.lost == before
    assert lossy.network is network


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"site": "nowhere"}, "the site is one of dispatch, combine"),
        ({"pattern": "often"}, "the pattern is one of packets, messages"),
        ({"share": 1.0}, "at least 0 and below 1, but is 1"),
        ({"packet_bytes": 8}, "at least 64 bytes, but packet-bytes is 8"),
        (
            {"site": "gradient_sync", "pattern": "lowest_weight"},
            "gradient_sync sends gradients",
        ),
    ],
)
def test_impossible(named: dict[str, float | str], says: str) -> None:
    with pytest.raises(LayoutError) as error:
        replace(WORK, dropping=Dropping(**named))  # type: ignore[arg-type]
    assert says in str(error.value)


def test_a_real_run_has_a_real_network() -> None:
    real = replace(WORK.training, virtual=False)
    with pytest.raises(LayoutError, match="but the run is not virtual"):
        replace(WORK, training=real, dropping=Dropping(share=0.1))
