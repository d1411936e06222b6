"""The built-in backends conform, and what does not conform is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
import torch

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment
from moetraffic.replay import make_plan
from moetraffic.replay.backend_conformance import conform
from moetraffic.replay.backends import choice, process_groups, requirements
from moetraffic.replay.backends.backend import Call, run
from moetraffic.replay.backends.nccl_environment import NCCL_ENVIRONMENT
from moetraffic.replay.request import LONGEST_S, silence_s

BACKENDS = [
    "gloo",
    "gloo-duplex",
    pytest.param(
        "nccl",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(
                torch.cuda.device_count() < 3, reason="needs three CUDA devices"
            ),
        ],
    ),
]


@pytest.mark.parametrize("name", BACKENDS)
def test_it_conforms(name, forked):
    def work(rank_env: RankEnvironment):
        return conform(choice.backend(name), rank_env)

    assert forked(3, work) == [[], [], []]


class Careless(process_groups.Gloo):
    """Loses the second half of a broadcast, and never adds up."""

    def bind(self, call: Call):
        launch = super().bind(call)
        if call.kind == "all_reduce":
            return lambda: None
        if call.kind != "broadcast":
            return launch

        def half():
            launch().wait()
            call.receive[len(call.receive) // 2 :].fill_(0xA5)

        return half


def test_what_does_not_conform_is_told(forked):
    def work(rank_env: RankEnvironment):
        return conform(Careless(), rank_env)

    found = forked(3, work)
    said = "\n".join(line for wrong in found for line in wrong)
    assert "broadcast of 60 bytes in (0, 1, 2), started 1 times: byte 30 of 60" in said
    assert "nothing was received there" in said
    assert "all_reduce of 4096 bytes in (0, 1, 2)" in said
    assert "of the sum of 3 ranks" in said
    assert "all_to_all" not in said
    assert "gather" not in said


def test_two_ranks_are_too_few_for_a_trial():
    with pytest.raises(ReplayError, match="3 ranks or more, but there are 2"):
        conform(process_groups.Gloo(), RankEnvironment(0, 2, 0))


def test_a_rank_that_does_not_come_is_an_error_in_time(forked):
    def work(rank_env: RankEnvironment):
        moves = choice.backend("gloo")
        moves.start(rank_env, [(0, 1, 2)], 1.0)
        if rank_env.rank == 2:
            time.sleep(2.5)
            return "late"
        call = Call(
            kind="all_to_all",
            group=0,
            send=moves.empty(30),
            receive=moves.empty(30),
            send_bytes=[10] * 3,
            receive_bytes=[10] * 3,
        )
        with pytest.raises(RuntimeError):
            run(moves, call)
        return "told"

    assert forked(3, work) == ["told", "told", "late"]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device")
def test_nccl_runs_on_one_device(tmp_path, monkeypatch):
    # in this process: CUDA cannot be used in a fork of a process that has used it
    for name in NCCL_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)  # and again at the end
    monkeypatch.setenv("MOETRAFFIC_FILESTORE", str(tmp_path / "store"))
    moves = choice.backend("nccl")
    moves.start(RankEnvironment(0, 1, 0), [(0,)], 60.0)
    try:
        buffers = moves.empty(1000).fill_(7), moves.empty(1000)
        call = Call(
            kind="all_to_all",
            group=0,
            send=buffers[0],
            receive=buffers[1],
            send_bytes=[1000],
            receive_bytes=[1000],
        )
        run(moves, call)
        assert int(call.receive.sum()) == 7000
    finally:
        moves.stop()


@pytest.fixture
def asked_of_torch(monkeypatch, tmp_path):
    """Start NCCL on a rank without a device; returns what torch is asked to make."""
    monkeypatch.setenv("MOETRAFFIC_FILESTORE", str(tmp_path / "store"))
    monkeypatch.setattr(process_groups, "NCCL_ENVIRONMENT", {})
    monkeypatch.setattr(process_groups, "own_gpu", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)

    def start(rank, groups, timeout_s=60.0):
        asked = []
        torch_distributed = SimpleNamespace(
            is_nccl_available=lambda: True,
            init_process_group=lambda _, **options: asked.append(options),
            new_group=lambda ranks, **options: asked.append({**options, "of": ranks}),
        )
        monkeypatch.setattr(process_groups, "dist", torch_distributed)
        process_groups.Nccl().start(RankEnvironment(rank, 4, rank), groups, timeout_s)
        return asked

    return start


def test_nccl_splits_the_groups_in_use_in_one_order_on_all_ranks(toy, asked_of_torch):
    # without its gradients, the group of all ranks that the trace names is not used
    trace = toy(world=4, groups=[(0, 2), (1, 3), (0, 1)])
    for rank in range(4):
        plan = make_plan(trace, ranks=(rank,), dense=False)
        assert plan.used_groups[-1] == ()
        world, *split = asked_of_torch(rank, (*plan.used_groups, (0, 1, 2, 3)))
        # torch splits groups from a communicator that was made for a device
        assert world["device_id"] == torch.device("cuda", 0)
        assert [g["of"] for g in split] == [[0, 2], [1, 3], [0, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize("timeout_s", [1.0, 86_400.0, LONGEST_S])
def test_a_replay_gives_up_before_nccl_does(asked_of_torch, timeout_s):
    for made in asked_of_torch(0, [(0, 1)], timeout_s):
        assert made["timeout"].total_seconds() > silence_s(timeout_s)


def test_nccl_without_enough_devices_says_so():
    rank_env = RankEnvironment(0, 1, torch.cuda.device_count())
    with pytest.raises(ReplayError, match=r"needs a CUDA device .* --backend gloo"):
        process_groups.Nccl().start(rank_env, [(0,)], 1.0)


def test_what_torch_was_built_without_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    with pytest.raises(ReplayError, match="built without it"):
        choice.backend("gloo").start(RankEnvironment(0, 1, 0), [(0,)], 1.0)


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(ReplayError, match=r"one of gloo, gloo-duplex, nccl.*'ib'"):
        choice.backend("ib")


class Foreign:
    """A backend of another package."""


def test_an_installed_package_can_bring_one(monkeypatch):
    def installed(*, group: str) -> list[EntryPoint]:
        assert group == "moetraffic.backends"
        return [EntryPoint("foreign", "somewhere:Foreign", group)]

    loaded: Callable[[EntryPoint], type] = lambda entry: Foreign  # noqa: E731
    monkeypatch.setattr(requirements, "entry_points", installed)
    monkeypatch.setattr(EntryPoint, "load", loaded)
    assert isinstance(choice.backend("foreign"), Foreign)
    assert isinstance(choice.backend("gloo"), process_groups.Gloo)
