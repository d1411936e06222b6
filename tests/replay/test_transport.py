"""Every kind of operation arrives by every backend; groups are few calls of torch."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from moetraffic.errors import ReplayError
from moetraffic.launch.environment import FILE_STORE, RankEnvironment
from moetraffic.replay import payload, transport
from moetraffic.replay.options import LONGEST_S
from moetraffic.replay.plan.matrices import buffers
from moetraffic.replay.plan.operations import KINDS
from moetraffic.replay.transport import NCCL_ENVIRONMENT, Transport, partitions
from moetraffic.trace.model import ALL_TO_ALL

WORLD = 3
CUT = ("reduce_scatter", "scatter")  # into equal parts
GROUPS = [(0, 1, 2), (0, 1, 2), (1, 2), (0, 2), (1,)]
SIZES = (0, 8, 64, 200_008)  # bytes, before rounding to equal parts
UNEVEN = (0, 1, 7, 250_000, 64)  # bytes between pairs of ranks, used in turn


@pytest.fixture(autouse=True, scope="module")
def registered():
    """Backends as of a package that registers them when torch is imported."""

    def make(store, rank, size, timeout):
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("renamed", make, devices=["cpu"])


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


def case_of(moves, number, kind, group, size, sender, receiver):
    """One operation as plan and program of this rank, its buffers and its splits."""
    rank, members = moves.rank, GROUPS[group]
    width, place = len(members), members.index(rank)
    sends, gets = [], []
    if kind == ALL_TO_ALL:
        pairs = np.full((width, width), size)
        if size == SIZES[-1]:
            pairs = np.resize(UNEVEN, (width, width))
        sends, gets = pairs[place].tolist(), pairs[:, place].tolist()
        send, receive = [sum(sends)], [sum(gets)]
    else:
        whole = size // (8 * width) * 8 * width if kind in CUT else size
        ends = (np.array([end], np.int32) for end in (sender, receiver))
        send, receive = buffers(kind, np.array([whole]), np.array([width]), rank, *ends)
    plan = SimpleNamespace(
        groups=GROUPS, sender={number: sender}, receiver={number: receiver}
    )
    program = SimpleNamespace(
        rank=rank,
        operation=[number],
        kind=[KINDS.index(kind)],
        group=[group],
        sends=lambda _: np.array(sends),
        receives=lambda _: np.array(gets),
    )
    both = moves.empty(int(send[0])), moves.empty(int(receive[0]))
    if kind in ("all_reduce", "reduce", "reduce_scatter") and number % 2:
        both = tuple(b.view(torch.float32) for b in both)
    return plan, program, both, sends, gets


@pytest.mark.parametrize("name", ["gloo", "gloo-duplex", "renamed"])
def test_every_kind_of_operation_arrives(name, forked):
    def work(rank_env: RankEnvironment):
        moves, wrong = Transport(name), []
        moves.start(rank_env, GROUPS, 30.0)
        for number, case in enumerate(cases()):
            kind, group, _, *ends = case
            if rank_env.rank not in GROUPS[group]:
                continue
            if kind == "send_recv" and rank_env.rank not in ends:
                continue
            plan, program, both, sends, gets = case_of(moves, number, *case)
            payload.fill(plan, program, 0, both)
            if kind == "send_recv":
                moves.run(moves.messages(group, [(*both, *ends)]))
            else:
                launch = moves.bind(kind, group, *both, sends, gets, root=max(ends))
                moves.run(launch)
            found = payload.find_wrong(plan, program, 0, both[1])
            if found is not None:
                wrong.append(f"{kind} in {GROUPS[group]}: {found[1]}")
        # each rank receives from one neighbor and sends to the other, at once
        rank = rank_env.rank
        send, receive = moves.empty(9).fill_(rank), moves.empty(9)
        ends = ((rank - 1) % 3, rank), (rank, (rank + 1) % 3)
        launch = moves.messages(0, [(send, receive, *pair) for pair in ends])
        for _ in range(2):  # what is bound once starts repeatedly
            receive.zero_()
            moves.run(launch)
            wrong += [] if set(receive.tolist()) == {(rank - 1) % 3} else ["message"]
        assert moves.gathered([rank, 7.0]).tolist() == [[0, 7], [1, 7], [2, 7]]
        moves.stop()
        return wrong

    assert forked(WORLD, work) == [[], [], []]


def test_a_backend_that_torch_does_not_have_is_refused():
    with pytest.raises(ReplayError, match=r"a backend is .*gloo.*not 'ib'"):
        Transport("ib")


def test_a_rank_that_does_not_come_is_an_error_in_time(forked):
    def work(rank_env: RankEnvironment):
        moves = Transport()
        moves.start(rank_env, [(0, 1, 2)], 1.0)
        if rank_env.rank == 2:
            time.sleep(2.5)
            return "late"
        both = moves.empty(30), moves.empty(30)
        with pytest.raises(RuntimeError):
            moves.run(moves.bind(ALL_TO_ALL, 0, *both, [10] * 3, [10] * 3))
        return "told"

    assert forked(3, work) == ["told", "told", "late"]


# ---- groups ----------------------------------------------------------------------

MANY = [
    tuple(range(1024)),
    *(tuple(range(r, r + 16)) for r in range(0, 1024, 16)),
    *(tuple(range(r, 1024, 16)) for r in range(16)),
]
"""81 groups of 1,024 ranks: all, 64 of 16 neighbors, 16 of 64 across these."""


def test_81_groups_are_two_sets_of_disjoint_ones():
    assert len(MANY) == 81
    sets = partitions(MANY, range(1, 81))
    assert [len(s) for s in sets] == [64, 16]
    assert sorted(n for members in sets for n in members) == list(range(1, 81))
    for members in sets:
        ranks = [rank for n in members for rank in MANY[n]]
        assert len(ranks) == len(set(ranks))


@pytest.fixture
def asked_of_torch(monkeypatch, tmp_path):
    """Start a rank without peers; returns what torch is asked to make."""
    monkeypatch.setenv(FILE_STORE, str(tmp_path / "store"))
    monkeypatch.setattr(transport, "NCCL_ENVIRONMENT", {})
    monkeypatch.setattr(transport, "own_gpu", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    zeros = torch.zeros
    monkeypatch.setattr(
        torch, "zeros", lambda *a, device=None, **more: zeros(*a, **more)
    )

    def start(name, rank, world, groups, timeout_s=60.0):
        asked = []

        def note(function):
            return lambda *a, **more: asked.append((function, a, more)) or function

        names = ("init_process_group", "new_group", "split_group")
        stand_in = SimpleNamespace(
            is_nccl_available=lambda: True,
            is_gloo_available=lambda: True,
            group=SimpleNamespace(WORLD="world"),
            **{function: note(function) for function in names},
        )
        monkeypatch.setattr(transport, "dist", stand_in)
        moves = Transport(name)
        moves.start(RankEnvironment(rank, world, 0), groups, timeout_s)
        return moves, asked

    return start


def test_nccl_splits_all_ranks_once_for_a_set_of_groups(asked_of_torch):
    for rank in (0, 517, 1023):
        moves, ((_, _, world), *made) = asked_of_torch("nccl", rank, 1024, MANY)
        # torch splits groups from a communicator that was made for a device
        assert world["device_id"] == torch.device("cuda", 0)
        assert [function for function, *_ in made] == ["split_group"] * 2
        assert [len(more["split_ranks"]) for _, _, more in made] == [64, 16]
        own = [n for n, pg in enumerate(moves._groups) if pg is not None]
        assert own == [0, 1 + rank // 16, 65 + rank % 16]
        assert moves._groups[0] == "world"


@pytest.mark.slow
def test_8_ranks_use_groups_that_overlap(forked):
    groups = [
        tuple(range(8)),
        *((r, r + 1) for r in range(0, 8, 2)),
        *((r, r + 2, r + 4, r + 6) for r in range(2)),
        *((r, r + 1) for r in range(0, 8, 2)),
    ]

    def work(rank_env: RankEnvironment):
        moves, sums = Transport(), []
        moves.start(rank_env, groups, 30.0)
        for number, ranks in enumerate(groups):
            if rank_env.rank in ranks:
                one = torch.full((1,), float(rank_env.rank))
                moves.run(moves.bind("all_reduce", number, one[:0], one))
                sums.append(one.item() == sum(ranks))
        moves.stop()
        return sums

    assert forked(8, work) == [[True] * 4] * 8


@pytest.mark.parametrize("timeout_s", [1.0, LONGEST_S])
def test_a_replay_gives_up_before_nccl_does(asked_of_torch, timeout_s):
    _, made = asked_of_torch("nccl", 0, 4, [(0, 1)], timeout_s)
    for _, _, more in made:
        assert more["timeout"].total_seconds() > 1.5 * timeout_s + 2


def test_nccl_without_enough_devices_says_so():
    rank_env = RankEnvironment(0, 1, torch.cuda.device_count())
    with pytest.raises(ReplayError, match=r"needs a CUDA device .* --backend gloo"):
        Transport("nccl").start(rank_env, [(0,)], 1.0)


def test_a_barrier_is_an_all_reduce(forked):
    def work(rank_env: RankEnvironment):
        moves = Transport()
        moves.start(rank_env, [(0, 1)], 30.0)
        launch = moves.bind("barrier", 0, moves.empty(0), moves.empty(0))
        name = launch.func.__name__
        moves.run(launch)
        moves.stop()
        return name

    assert forked(2, work) == ["all_reduce"] * 2


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device")
def test_nccl_runs_on_one_device(tmp_path, monkeypatch):
    # in this process: CUDA cannot be used in a fork of a process that has used it
    for name in NCCL_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)  # and again at the end
    monkeypatch.setenv(FILE_STORE, str(tmp_path / "store"))
    moves = Transport("nccl")
    moves.start(RankEnvironment(0, 1, 0), [(0,), (0,)], 60.0)
    try:
        both = moves.empty(1000).fill_(7), moves.empty(1000)
        for group in (0, 1):
            moves.run(moves.bind(ALL_TO_ALL, group, *both, [1000], [1000]))
        assert int(both[1].sum()) == 7000
    finally:
        moves.stop()
