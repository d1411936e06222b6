"""Each all-to-all is recorded once, and alike by the method and by the kernel."""

from __future__ import annotations

import gc
import importlib
import json
import tempfile
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile
from torch.testing._internal.two_tensor import TwoTensor

from moetraffic.capture.hook import exchange_method
from moetraffic.capture.hook import python as hook
from moetraffic.capture.hook.call_recording import CallSink
from moetraffic.capture.hook.calling_block import BlockSearch
from moetraffic.capture.hook.completion import CompletionTracker, DeviceClock
from moetraffic.capture.record_format import CALL, END

if not hasattr(torch._C.DispatchKeySet, "raw_repr"):
    pytest.skip("torch 2.4 has no method to record in", allow_module_level=True)

CommDebugMode = importlib.import_module("torch.distributed.tensor.debug").CommDebugMode
Record = tuple[Any, ...]
Situation = Callable[[], Any]


@pytest.fixture(autouse=True, scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process as the one rank of a world."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("alone") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What a hook puts, and what it fails at."""

    records: list[Record] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    @property
    def calls(self) -> list[Record]:
        return [r for r in self.records if r[0] == CALL]

    @property
    def ended(self) -> list[int]:
        """Numbers of the calls whose end was seen, counted from the first call."""
        first = self.calls[0][1] if self.calls else 0
        return [r[1] - first for r in self.records if r[0] == END]

    @property
    def by_method(self) -> list[bool]:
        """Of each call, whether the process group's method recorded it."""
        return [isinstance(call[-1][-1], array) for call in self.calls]


@contextmanager
def hooked() -> Iterator[Notes]:
    notes = Notes()
    completion = CompletionTracker(notes.records.append, DeviceClock(lambda _: None))
    blocks = BlockSearch()
    blocks.searches = False
    sink = CallSink(
        put=notes.records.append,
        meet=lambda _: None,
        number=lambda *_: 0,
        before=lambda _: None,
        launched=completion.launched,
        waiting=completion.waiting,
        failed=lambda _, error: notes.failures.append(error),
        blocks=blocks,
    )
    with ExitStack() as undo:
        undo.callback(hook.install(sink))
        undo.callback(completion.install())
        yield notes


def rows(*shape: int, **about: Any) -> torch.Tensor:
    return (
        torch.arange(float(np.prod(shape or (4,)))).reshape(shape or (4,)).to(**about)
    )


def exchange(given: torch.Tensor, **about: Any) -> torch.Tensor:
    output = torch.empty_like(given)
    dist.all_to_all_single(output, given, **about)
    return output.detach()


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return exchange(given)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return exchange(gradients[0])


def asynchronous() -> torch.Tensor:
    outputs = [torch.empty(4) for _ in range(3)]
    works = [dist.all_to_all_single(o, rows(), async_op=True) for o in outputs]
    for work in reversed(works):
        work.wait()
    return torch.stack(outputs)


def in_both_passes() -> torch.Tensor:
    leaf = rows(4, 2).requires_grad_()
    Exchange.apply(leaf * 2).square().sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def in_a_thread() -> torch.Tensor:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(exchange(rows())))
    thread.start()
    thread.join()
    return found[0]


def lists_that_change() -> torch.Tensor:
    output, sent, received = torch.empty(4), [4], [4]
    dist.all_to_all_single(output, rows(), received, sent)
    sent[0] = received[0] = 99
    return output


def wrong_splits() -> str:
    with pytest.raises((RuntimeError, ValueError)) as refused:
        dist.all_to_all_single(torch.empty(4), rows(), [3], [4])
    return f"{refused.type.__name__} {refused.value}"


PLAIN: dict[str, tuple[Situation, int]] = {  # and its number of calls
    "plain": (lambda: exchange(rows()), 1),
    "splits": (
        lambda: exchange(rows(4, 2), output_split_sizes=[4], input_split_sizes=[4]),
        1,
    ),
    "splits of numpy": (
        lambda: exchange(rows(), output_split_sizes=list(np.array([4]))),
        1,
    ),
    "nothing": (lambda: exchange(torch.empty(0, 8)), 1),
    "bfloat16": (lambda: exchange(rows(4, 2, dtype=torch.bfloat16)), 1),
    "complex": (lambda: exchange(rows(4, 2, dtype=torch.complex64)), 1),
    "asynchronous": (asynchronous, 3),
    "both passes": (in_both_passes, 2),
    "thread": (in_a_thread, 1),
    "lists that change": (lists_that_change, 1),
    "wrong splits": (wrong_splits, 1),
}


def in_inference() -> torch.Tensor:
    with torch.inference_mode():
        return exchange(rows())


def under_a_mode() -> torch.Tensor:
    with CommDebugMode() as mode:
        output = exchange(rows())
    assert mode.get_total_counts() == 1
    return output


def under_a_profiler() -> torch.Tensor:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        output = exchange(rows())
    assert [e.key for e in seen.key_averages() if e.key.startswith("c10d::")] == [
        "c10d::alltoall_base_"
    ]
    return output


def with_another_kernel() -> tuple[torch.Tensor, int]:
    """A kernel that another library registers while the hook is there."""
    seen = []
    operator = torch.ops.c10d.alltoall_base_.default._handle
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.AutogradCPU)
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]

    def kernel(keys: Any, *given: Any) -> Any:
        seen.append(keys)
        return operator.redispatch_boxed(keys & below, *given)

    exchange(rows())
    library.impl("alltoall_base_", kernel, "AutogradCPU", with_keyset=True)  # type: ignore[no-untyped-call]
    try:
        return exchange(rows()), len(seen)
    finally:
        library._destroy()


def directly() -> torch.Tensor:
    group, output = dist.group.WORLD, torch.empty(4)
    assert group is not None
    group.alltoall_base(output, rows(), [], []).wait()
    group.alltoall_base(output, rows(), [], [], opts=dist.AllToAllOptions()).wait()
    return output


def functionally() -> torch.Tensor:
    group = dist.group.WORLD
    assert group is not None
    return functional.all_to_all_single(rows(), None, None, group) + 0


def not_numbers() -> str:
    with pytest.raises(TypeError) as refused:
        dist.all_to_all_single(torch.empty(4), rows(), [4.0], ["4"])  # type: ignore[list-item]
    return str(refused.value)[:200]


def unsent() -> None:
    with FakeTensorMode():
        exchange(rows())
    exchange(torch.empty(4, device="meta"))


class OwnGroup(dist.ProcessGroup):
    """A group whose method is its own, as those of fault-tolerant training are."""

    def alltoall_base(self, *given: Any) -> str:
        return f"own, with {len(given)} arguments"


def own_group() -> tuple[str, str]:
    group, options = OwnGroup(0, 1), dist.AllToAllOptions()
    said = group.alltoall_base(rows(), rows(), [], [], options)
    with pytest.raises(RuntimeError) as refused:
        # C++ looks up the method in Python, and casts what it returns to a work
        group.all_to_all_single(torch.empty(4), rows(), [], [], options)
    return said, str(refused.value)[:60]


def observed() -> int:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        observer = ExecutionTraceObserver().register_callback(file.name)
        observer.start()
        exchange(rows())
        observer.stop()
        observer.unregister_callback()
        nodes = json.loads(Path(file.name).read_text())["nodes"]
    return sum(node["name"] == "c10d::alltoall_base_" for node in nodes)


def vmapped() -> torch.Tensor:
    def one(given: torch.Tensor) -> torch.Tensor:
        exchange(rows())
        return given * 2

    return torch.func.vmap(one)(rows(3, 2))


OTHERS: dict[str, tuple[Situation, int]] = {
    "gradient recorded": (lambda: exchange(rows().requires_grad_()), 1),
    "negated": (lambda: exchange(rows(dtype=torch.complex64).conj().imag), 1),
    # the wait is for the first of its two calls
    "subclass": (lambda: exchange(TwoTensor(rows(), rows())).a, 2),
    "parameter": (lambda: exchange(torch.nn.Parameter(rows(), requires_grad=False)), 1),
    "inference": (in_inference, 1),
    "dispatch mode": (under_a_mode, 1),
    "profiler": (under_a_profiler, 1),
    "kernel of another library": (with_another_kernel, 2),
    "method called directly": (directly, 2),
    "functional": (functionally, 1),
    "transform": (vmapped, 1),
    "observer": (observed, 1),
    "not numbers": (not_numbers, 0),
    "not sent": (unsent, 0),
    "group of Python": (own_group, 0),
}


def normal(notes: Notes, sequence: int) -> list[Record]:
    """The records without times and numbers, links relative to the first."""
    found = []
    for record in notes.calls:
        _, _, _, operation, *about, _, again, grad, link, ran, described = record
        *peers, shape, filled, sent, received = described
        what = tuple(shape), tuple(filled), list(sent), list(received)
        found.append((operation, about, again, grad, link - sequence, ran, peers, what))
    return found


def play(situation: Situation) -> tuple[Notes, list[Record], Any]:
    sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    with hooked() as notes:
        result = situation()
    assert notes.failures == []
    return notes, normal(notes, sequence), result


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_recorded_once_and_as_by_the_kernel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    situation, calls = {**PLAIN, **OTHERS}[name]
    bare = situation()
    notes, records, result = play(situation)
    monkeypatch.setattr(exchange_method, "install", lambda *_: lambda: None)
    kernels, expected, forwarded = play(situation)
    assert len(records) == calls
    assert records == expected
    assert notes.ended == kernels.ended
    assert not any(kernels.by_method)
    assert any(notes.by_method) == (
        name in PLAIN or name == "kernel of another library"
    )
    assert repr((result, forwarded)) == repr((bare, bare))


def test_the_method_is_torch_s_own_again() -> None:
    before = dict(vars(dist.ProcessGroup))
    with hooked():
        assert dict(vars(dist.ProcessGroup)) != before
    assert dict(vars(dist.ProcessGroup)) == before


def test_a_call_that_is_never_waited_for_has_no_end() -> None:
    group, options = dist.group.WORLD, dist.AllToAllOptions()
    assert group is not None
    options.asyncOp = False
    late = rows(), torch.empty(4)
    with hooked() as notes:
        handle = dist.all_to_all_single(late[1], late[0], async_op=True)
        group.all_to_all_single(torch.empty(4), rows(), [], [], options)
        handle.wait()  # of the first call, not of the second
        exchange(rows())
        dropped = group.all_to_all_single(torch.empty(4), rows(), [], [], options)
    assert notes.by_method == [True] * 4
    assert notes.ended == [0, 2]
    dropped.wait()


@pytest.mark.parametrize("subclass", [False, True])
def test_a_group_without_a_backend_raises_torch_s_error(subclass: bool) -> None:
    base: Any = dist.ProcessGroup
    group = (type("Group", (base,), {}) if subclass else base)(0, 1)

    def error() -> str:
        with pytest.raises(RuntimeError) as refused:
            group.all_to_all_single(
                torch.empty(4), rows(), [], [], dist.AllToAllOptions()
            )
        return str(refused.value).splitlines()[0]

    bare = error()
    with hooked():
        assert error() == bare


@pytest.mark.slow
def test_compiled_programs_are_recorded_by_the_kernel() -> None:
    def doubled(given: torch.Tensor) -> torch.Tensor:
        return exchange(given * 2) + 1

    compiled = torch.compile(doubled, backend="aot_eager")
    with hooked() as notes:
        output = compiled(rows())
    assert output.tolist() == [1, 3, 5, 7]
    assert notes.by_method == [False]
