"""What every backend must do.  A third party runs this file with its own name added."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

from moetraffic.errors import ReplayError
from moetraffic.launch import Seat
from moetraffic.replay import backends, payload

BACKENDS = [
    "gloo",
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
GROUPS = [(0, 1, 2), (0, 2), (1,)]
SIZES = [  # bytes from row to column, by operation
    [[5, 100, 7], [33, 0, 1], [250_000, 8, 64]],  # uneven
    [[0, 0, 0], [9, 0, 9], [0, 0, 0]],  # two ranks send nothing
    [[0, 0, 0]] * 3,  # nobody sends anything
    [[16, 16, 16]] * 3,  # even
]


def exchange(
    moves: backends.Backend, rank: int, group: int, sizes: np.ndarray, number: int
) -> tuple[payload.WrongByte | None, int, int]:
    """One verified all-to-all of a group; begin and end as the backend told them."""
    members = GROUPS[group]
    me = members.index(rank)
    sends, receives = sizes[me].tolist(), sizes[:, me].tolist()
    out = np.empty(sum(sends), np.uint8)
    payload.fill(out, source=rank, destinations=members, operation=number, sizes=sends)
    send = torch.from_numpy(out).to(moves.device)
    receive = torch.full((sum(receives),), 165, dtype=torch.uint8, device=moves.device)
    begin, end = moves.all_to_all(group, receive, send, receives, sends)
    wrong = payload.verify(
        receive.cpu().numpy(),
        destination=rank,
        sources=members,
        operation=number,
        sizes=receives,
    )
    return wrong, begin, end


@pytest.mark.parametrize("name", BACKENDS)
def test_it_moves_exactly_the_bytes_and_tells_when(name, forked):
    def work(seat: Seat):
        moves = backends.backend(name)
        moves.start(seat, GROUPS, 30.0)
        found = []
        for number, sizes in enumerate(SIZES):
            before = time.monotonic_ns()
            told = exchange(moves, seat.rank, 0, np.array(sizes), number)
            found.append((*told, before, time.monotonic_ns()))
        # a pair of the three, and a rank alone
        if seat.rank != 1:
            pair = np.array([[1, 20], [300, 4]])
            found.append((*exchange(moves, seat.rank, 1, pair, 9), 0, 1 << 62))
        else:
            alone = np.array([[77]])
            found.append((*exchange(moves, seat.rank, 2, alone, 9), 0, 1 << 62))
        moves.stop()
        return found

    for told in forked(3, work):
        assert len(told) == len(SIZES) + 1
        for wrong, begin, end, before, after in told:
            assert wrong is None
            # both clocks of a device are rounded to a microsecond
            assert before - 1_000_000 <= begin <= end <= after


@pytest.mark.parametrize("name", BACKENDS[:1])
def test_a_rank_that_does_not_come_is_an_error_in_time(name, forked):
    def work(seat: Seat):
        moves = backends.backend(name)
        moves.start(seat, GROUPS, 1.0)
        if seat.rank == 2:
            time.sleep(2.5)
            return "late"
        sizes = np.array(SIZES[0])
        with pytest.raises(RuntimeError):
            exchange(moves, seat.rank, 0, sizes, 0)
        return "told"

    assert forked(3, work) == ["told", "told", "late"]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device")
def test_nccl_runs_on_one_device(forked):
    def work(seat: Seat):
        moves = backends.Nccl()
        moves.start(seat, [(0,)], 60.0)
        receive = torch.zeros(1000, dtype=torch.uint8, device=moves.device)
        send = torch.full((1000,), 7, dtype=torch.uint8, device=moves.device)
        begin, end = moves.all_to_all(0, receive, send, [1000], [1000])
        moves.stop()
        return int(receive.sum()), end - begin

    ((total, took),) = forked(1, work)
    assert total == 7000
    assert took > 0


def test_nccl_without_enough_devices_says_so():
    seat = Seat(0, 1, torch.cuda.device_count())
    with pytest.raises(ReplayError, match=r"needs a CUDA device .* --backend gloo"):
        backends.Nccl().start(seat, [(0,)], 1.0)


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(ReplayError, match=r"one of gloo, nccl.*, not 'ucc'"):
        backends.backend("ucc")


class Foreign:
    """A backend of another package."""


def test_an_installed_package_can_bring_one(monkeypatch):
    def installed(*, group: str) -> list[EntryPoint]:
        assert group == "moetraffic.backends"
        return [EntryPoint("foreign", "somewhere:Foreign", group)]

    loaded: Callable[[EntryPoint], type] = lambda entry: Foreign  # noqa: E731
    monkeypatch.setattr(backends, "entry_points", installed)
    monkeypatch.setattr(EntryPoint, "load", loaded)
    assert isinstance(backends.backend("foreign"), Foreign)
    assert isinstance(backends.backend("gloo"), backends.Gloo)
