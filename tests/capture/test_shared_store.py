"""Keys of one recorder: no rank reads what an earlier life of the ranks has left."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, Store

from moetraffic.capture import shared_store
from moetraffic.capture.shared_store import SharedStore, fresh

Life = Callable[[str], list[str]]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Life:
    """Start two ranks on a store that all lives share; what they read of rank 0.

    Rank 1 asks before rank 0 decides.
    """
    store = HashStore()
    monkeypatch.setattr(shared_store, "PATIENCE", timedelta(seconds=10))

    def ask(rank: int, own: Store | None, name: str) -> str:
        shared = SharedStore.__new__(SharedStore)
        shared.rank, shared.store = rank, own
        return shared.ask_rank_0("trace", lambda: name, otherwise="nothing")

    def start(name: str) -> list[str]:
        with ThreadPoolExecutor(2) as pool:
            second = pool.submit(lambda: ask(1, fresh(store, 1, 2, "recorder"), ""))
            first = ask(0, fresh(store, 0, 2, "recorder"), name)
            return [first, second.result()]

    return start


def test_ranks_that_begin_anew_agree_on_the_new_name(live: Life) -> None:
    for name in ("run.h5", "run-2.h5", "run-3.h5"):
        assert live(name) == [name, name]


def test_a_rank_that_died_before_it_read_leaves_no_answer_to_the_restarted(
    live: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_store.PrefixStore, "add", lambda *_: 1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert live("run.h5") == ["run.h5", "run.h5"]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert live("run-2.h5") == ["run-2.h5", "run-2.h5"]


def test_without_rank_0_a_rank_is_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "PATIENCE", timedelta(milliseconds=50))
    assert fresh(HashStore(), 1, 2, "recorder") is None


def test_a_process_without_a_group_decides_itself() -> None:
    store = SharedStore("recorder")
    assert store.store is None
    assert store.ask_rank_0("trace", lambda: "run.h5", otherwise="") == "run.h5"
