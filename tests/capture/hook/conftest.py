"""A hook with a queue of its own, without a recorder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from moetraffic.capture.hook import calls, native
from moetraffic.capture.hook.calling_block import BlockSearch
from moetraffic.capture.hook.completion import CompletionTracker, DeviceClock
from moetraffic.trace.merge.log_format import CALL, CALL_FIELDS, CALL_HEAD

Words = tuple[int, ...]


def split(content: bytes) -> list[Words]:
    """Split words into records."""
    words = np.frombuffer(content, np.int64).tolist()
    records = []
    while words:
        records.append(tuple(words[: words[1]]))
        del words[: words[1]]
    return records


class Queue:
    """A queue of records in Python."""

    def __init__(self) -> None:
        self.content = b""

    def put(self, words: Any) -> None:
        self.content += bytes(words)

    def take(self) -> tuple[bytes, int]:
        content, self.content = self.content, b""
        return content, 0


class Hook:
    """An installed hook, and what it recorded."""

    def __init__(self, compiled: ModuleType | None) -> None:
        self.queue: Any = compiled or Queue()
        self.queue.take()
        self.numbers: dict[tuple[str, Any], int] = {}
        self.errors: list[tuple[str, str]] = []
        self.blocks = BlockSearch(self.number)
        self.blocks.searches = False
        put = self.queue.put
        self.completion = CompletionTracker(put, DeviceClock(put), compiled)
        self.compiled = compiled

    def number(self, kind: str, name: Any) -> int:
        return self.numbers.setdefault((kind, name), len(self.numbers))

    def name(self, number: int) -> Any:
        return next(n for (_, n), known in self.numbers.items() if known == number)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        sink = calls.CallSink(
            put=self.queue.put,
            meet=lambda group: self.number("group", group.group_name),
            number=self.number,
            failed=lambda name, error: self.errors.append((name, str(error))),
            completion=self.completion,
            blocks=self.blocks,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(calls.install(sink, self.compiled))
            undo.callback(self.completion.install())
            yield

    def records(self) -> list[Words]:
        return split(self.queue.take()[0])

    def calls(self) -> list[dict[str, Any]]:
        """Take the records; return the fields of calls, with their splits."""
        return [
            {**dict(zip(CALL_FIELDS, r, strict=False)), "splits": r[CALL_HEAD:]}
            for r in self.records()
            if r[0] == CALL
        ]


@pytest.fixture(params=["python", pytest.param("native", marks=pytest.mark.slow)])
def hook(request: pytest.FixtureRequest) -> Hook:
    if request.param == "python":
        return Hook(None)
    request.getfixturevalue("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, "native")
        return Hook(native.load())


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group(
        "gloo",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
    )
    yield
    dist.destroy_process_group()


@pytest.fixture
def fake_group() -> Iterator[None]:
    """A process group of 4 ranks, of which 3 do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()
