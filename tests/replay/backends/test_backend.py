"""Every kind of operation arrives by every backend, and what has none is refused."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment
from moetraffic.replay import make_plan
from moetraffic.replay.__main__ import main
from moetraffic.replay.backends import backend as backends
from moetraffic.replay.backends.backend import Backend, Call, Nccl, create, run
from moetraffic.replay.backends.nccl_environment import NCCL_ENVIRONMENT
from moetraffic.replay.execution.payload import fill_buffers, find_wrong
from moetraffic.replay.plan.program import KINDS
from moetraffic.replay.plan.sizes import buffers
from moetraffic.replay.request import LONGEST_S, silence_s
from moetraffic.trace.model import ALL_TO_ALL

WORLD = 3
GROUPS = [(0, 1, 2), (0, 1, 2), (1, 2), (0, 2), (1,)]
SIZES = (0, 4, 60, 200_004)  # bytes, before rounding to equal parts
UNEVEN = (0, 1, 7, 250_000, 64)  # bytes between pairs of ranks, used in turn
BACKENDS = [
    *("gloo", "gloo-duplex", "renamed"),
    pytest.param(
        "nccl",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(
                torch.cuda.device_count() < WORLD, reason="needs three CUDA devices"
            ),
        ],
    ),
]


@pytest.fixture(autouse=True, scope="module")
def registered():
    """Backends as of a package that registers them when torch is imported."""

    def make(store, rank, size, timeout):
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    for name, device in (("renamed", "cpu"), ("elsewhere", "xpu"), ("other", "cuda")):
        dist.Backend.register_backend(name, make, devices=[device])


def call_of(moves, rank, kind, group, size, sender=-1, receiver=-1) -> Call:
    members = GROUPS[group]
    width, me = len(members), members.index(rank)
    sends, gets = [], []
    if kind == ALL_TO_ALL:
        pairs = np.full((width, width), size)
        if size == SIZES[-1]:
            pairs = np.resize(UNEVEN, (width, width))
        sends, gets = pairs[me].tolist(), pairs[:, me].tolist()
        send, receive = [sum(sends)], [sum(gets)]
    else:
        whole = size // width * width if kind in ("reduce_scatter", "scatter") else size
        ends = (np.array([end], np.int32) for end in (sender, receiver))
        send, receive = buffers(kind, np.array([whole]), np.array([width]), rank, *ends)
    return Call(
        kind=kind,
        group=group,
        send=moves.empty(int(send[0])),
        receive=moves.empty(int(receive[0])),
        send_bytes=sends,
        receive_bytes=gets,
        sender=sender,
        receiver=receiver,
    )


def cases():
    """Kind, group, size, sender and receiver of each operation."""
    for group, members in enumerate(GROUPS):
        ends = {
            "broadcast": [(m, -1) for m in members],
            "scatter": [(m, -1) for m in members],
            "reduce": [(-1, m) for m in members],
            "gather": [(-1, m) for m in members],
            "send_recv": list(zip(members, (*members[1:], members[0]), strict=True)),
        }
        for kind in KINDS:
            for size in SIZES:
                for sender, receiver in ends.get(kind, [(-1, -1)]):
                    yield kind, group, size, sender, receiver


@pytest.mark.parametrize("name", BACKENDS)
def test_every_kind_of_operation_arrives(name, forked):
    def work(rank_env: RankEnvironment):
        moves, rank, wrong = create(name), rank_env.rank, []
        moves.start(rank_env, GROUPS, 30.0)

        def check(calls, start, number):
            for call in calls:
                of = {"rank": rank, "members": GROUPS[call.group], "operation": number}
                fill_buffers(call, **of)
            start()
            for call in calls:
                of = {"rank": rank, "members": GROUPS[call.group], "operation": number}
                if (found := find_wrong(call, **of)) is not None:
                    wrong.append(f"{call.kind} in {GROUPS[call.group]}: {found[1]}")

        for number, case in enumerate(cases()):
            kind, group, _, *ends = case
            if rank in GROUPS[group] and (kind != "send_recv" or rank in ends):
                call = call_of(moves, rank, *case)
                check([call], lambda call=call: run(moves, call), number)

        # each rank receives from one neighbor and sends to the other, at once
        ends = [((rank - 1) % WORLD, rank), (rank, (rank + 1) % WORLD)]
        calls = [call_of(moves, rank, "send_recv", 0, SIZES[-1], *e) for e in ends]
        launch = moves.bind_batch(calls)
        for number in (7, 8):  # what is bound once starts repeatedly
            check(calls, lambda: launch().wait(), number)
        moves.stop()
        return wrong

    assert forked(WORLD, work) == [[], [], []]


def test_a_registered_backend_replays_a_trace(replay_with, toy_file):
    path = toy_file()
    made = replay_with(path, backend="renamed")
    assert (made.backend, made.verified, made.ranks) == ("renamed", "full", 2)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ib", r"one of gloo, gloo-duplex, nccl, .*renamed.* not 'ib': choose one"),
        ("elsewhere", "backend elsewhere supports xpu alone: choose another"),
    ],
)
def test_what_torch_has_not_is_refused(toy_file, capsys, name, says):
    with pytest.raises(ReplayError, match=says):
        create(name)
    assert main([str(toy_file()), "--backend", name]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moetraffic: ")
    assert said.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA")
def test_a_backend_for_devices_alone_needs_one(toy_file, capsys):
    assert main([str(toy_file()), "--backend", "other"]) == 2
    assert "backend other needs a CUDA device" in capsys.readouterr().err


def test_a_rank_that_does_not_come_is_an_error_in_time(forked):
    def work(rank_env: RankEnvironment):
        moves = create("gloo")
        moves.start(rank_env, [(0, 1, 2)], 1.0)
        if rank_env.rank == 2:
            time.sleep(2.5)
            return "late"
        with pytest.raises(RuntimeError):
            run(moves, call_of(moves, rank_env.rank, ALL_TO_ALL, 0, 10))
        return "told"

    assert forked(3, work) == ["told", "told", "late"]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device")
def test_nccl_runs_on_one_device(tmp_path, monkeypatch):
    # in this process: CUDA cannot be used in a fork of a process that has used it
    for name in NCCL_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)  # and again at the end
    monkeypatch.setenv("MOETRAFFIC_FILESTORE", str(tmp_path / "store"))
    moves = create("nccl")
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
    monkeypatch.setattr(backends, "NCCL_ENVIRONMENT", {})
    monkeypatch.setattr(backends, "own_gpu", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)

    def start(rank, groups, timeout_s=60.0):
        asked = []
        torch_distributed = SimpleNamespace(
            is_nccl_available=lambda: True,
            init_process_group=lambda _, **options: asked.append(options),
            new_group=lambda ranks, **options: asked.append({**options, "of": ranks}),
        )
        monkeypatch.setattr(backends, "dist", torch_distributed)
        Nccl().start(RankEnvironment(rank, 4, rank), groups, timeout_s)
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


@pytest.mark.parametrize("timeout_s", [1.0, LONGEST_S])
def test_a_replay_gives_up_before_nccl_does(asked_of_torch, timeout_s):
    for made in asked_of_torch(0, [(0, 1)], timeout_s):
        assert made["timeout"].total_seconds() > silence_s(timeout_s)


def test_nccl_without_enough_devices_says_so():
    rank_env = RankEnvironment(0, 1, torch.cuda.device_count())
    with pytest.raises(ReplayError, match=r"needs a CUDA device .* --backend gloo"):
        Nccl().start(rank_env, [(0,)], 1.0)


def test_what_torch_was_built_without_is_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(ReplayError, match="built without it"):
        Backend("gloo").start(RankEnvironment(0, 1, 0), [(0,)], 1.0)
