"""Either hook puts the same words of what is really sent, and never disturbs it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor.debug import CommDebugMode

from moetraffic import capture
from moetraffic.capture.annotate import CallContext
from moetraffic.trace.merge.log_format import CALL, END, OPERATIONS, RAISED
from moetraffic.trace.model import UNKNOWN_TIME

pytestmark = pytest.mark.usefixtures("group")


def send(rows: torch.Tensor, number: int | None = None, **options: Any) -> Any:
    """Send rows to this rank itself."""
    splits = [len(rows)] if number is None else [number]
    output = torch.empty_like(rows)
    return dist.all_to_all_single(output, rows, splits, splits, **options)


def test_an_exchange_that_raises_is_not_sent(hook) -> None:
    """Gloo has no float8: programs catch the error and send the bytes."""
    rows = torch.ones(4, 16).to(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError) as bare:
        send(rows)
    with hook.installed():
        with pytest.raises(RuntimeError) as raised:
            send(rows)
        send(rows.view(torch.uint8))
    assert str(raised.value).split("\n")[0] == str(bare.value).split("\n")[0]
    first, error, second, end = hook.records()
    assert error == (RAISED, 3, first[2])
    assert (first[0], second[0]) == (CALL, CALL)
    assert end[:4] == (END, 5, second[2], UNKNOWN_TIME)
    assert hook.errors == []


def test_an_exchange_that_is_refused_is_not_sent(hook) -> None:
    """Others raise when they are issued."""
    rows = torch.ones(4, 16).t()
    with hook.installed():
        with pytest.raises(ValueError, match="contiguous"):
            send(rows)
        with pytest.raises(RuntimeError):
            send(rows.contiguous().to(torch.float8_e4m3fn), async_op=True).wait()
        send(rows.contiguous())
    records = hook.records()
    first = records[0][2]
    assert [(record[0], record[2] - first) for record in records] == [
        *((CALL, 0), (RAISED, 0)),
        *((CALL, 1), (RAISED, 1)),
        *((CALL, 2), (END, 2)),
    ]


def test_words_of_an_exchange(hook) -> None:
    """Its splits are copied: programs reuse their lists."""
    splits = [3]
    with hook.installed(), capture.at(layer=2, phase="dispatch"):
        rows = torch.ones(3, 5, 2, dtype=torch.bfloat16)
        dist.all_to_all_single(torch.empty_like(rows), rows, splits, splits)
        splits[0] = 7
    (call,) = hook.calls()
    assert OPERATIONS[call["operation"]] == "all_to_all"
    assert (call["bytes"], call["row"]) == (0, 20)
    assert (call["rows_sent"], call["rows_received"]) == (3, 3)
    assert (call["sends"], call["receives"], call["splits"]) == (1, 1, (3, 3))
    assert (call["source"], call["destination"]) == (-1, -1)
    assert hook.name(call["dtype"]) == torch.bfloat16
    assert hook.name(call["context"]) == CallContext(2, "dispatch")
    assert (call["in_backward"], call["grad"], call["node"]) == (0, 1, -1)


def program() -> None:
    """Collectives of each form of arguments."""
    rows = torch.ones(6, 4)
    send(rows)
    send(torch.ones(0, 4))
    dist.all_to_all_single(torch.empty(6, 4), rows)
    dist.all_to_all([torch.empty(3)], [torch.ones(3)])
    with torch.no_grad():
        dist.all_reduce(torch.ones(10, dtype=torch.bfloat16))
    dist.all_gather([torch.empty(5)], torch.ones(5))
    dist.reduce_scatter_tensor(torch.empty(4), torch.ones(4))
    dist.scatter(torch.empty(2), [torch.ones(2)], 0)
    dist.gather(torch.ones(2), [torch.ones(2)], 0)
    dist.broadcast(torch.ones(3), 0)
    dist.barrier()
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    functional.all_to_all_single(rows, [6], [6], dist.group.WORLD).sum()
    for part in functional.all_reduce_coalesced([rows, rows], "sum", dist.group.WORLD):
        part.sum()


def test_words_of_each_operator(hook) -> None:
    with hook.installed():
        program()
    assert hook.errors == []
    records = hook.records()
    calls = [record for record in records if record[0] == CALL]
    first = calls[0][2]
    fields = [(r[2] - first, OPERATIONS[r[4]], *r[15:]) for r in calls]
    assert fields == [
        (0, "all_to_all", 0, 16, 6, 6, 1, 1, 6, 6),
        (1, "all_to_all", 0, 16, 0, 0, 1, 1, 0, 0),
        (2, "all_to_all", 0, 16, 6, 6, 0, 0),
        (3, "all_to_all", 0, 4, 3, 3, 1, 1, 3, 3),
        (4, "all_reduce", 20, 0, 0, 0, 0, 0),
        (5, "all_gather", 20, 0, 0, 0, 0, 0),
        (6, "reduce_scatter", 16, 0, 0, 0, 0, 0),
        (7, "scatter", 8, 0, 0, 0, 0, 0),
        (8, "gather", 8, 0, 0, 0, 0, 0),
        (9, "broadcast", 12, 0, 0, 0, 0, 0),
        (10, "barrier", 0, 0, 0, 0, 0, 0),
        (11, "all_reduce", 8, 0, 0, 0, 0, 0),
        (12, "all_to_all", 0, 16, 6, 6, 1, 1, 6, 6),
        (13, "all_reduce", 192, 0, 0, 0, 0, 0),
    ]
    dtypes = [hook.name(r[7]) for r in calls]
    assert dtypes[4] == torch.bfloat16
    assert dtypes[10] is None
    assert [r[10] for r in calls] == [1] * 4 + [0] + [1] * 9
    # each ends after it began, and once
    ends = {r[2]: r[4] for r in records if r[0] == END}
    assert sorted(ends) == [r[2] for r in calls]
    assert all(ends[r[2]] > r[3] for r in calls)


class Exchange(torch.autograd.Function):
    """An all-to-all with a gradient; it uses a name that its node has too."""

    @staticmethod
    def forward(ctx: Any, rows: Any) -> Any:
        ctx.name = "anything"
        send(rows)
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        send(gradient.contiguous())
        return gradient


def test_calls_of_a_backward_pass_name_their_node(hook) -> None:
    weight = torch.ones(4, 2, requires_grad=True)
    weight.register_post_accumulate_grad_hook(
        lambda p: dist.all_reduce(p.grad) and None
    )
    with hook.installed():
        Exchange.apply(weight * 2).sum().backward()
    forward, backward, accumulated = hook.calls()
    assert (forward["in_backward"], forward["node"]) == (0, -1)
    assert (backward["in_backward"], backward["grad"]) == (1, 0)
    assert hook.name(backward["node"]) == "ExchangeBackward"
    # the sequence number that the forward pass gave to the node
    assert backward["link"] == forward["link"]
    # the node that accumulates a gradient has 2^64 - 1
    assert (accumulated["in_backward"], accumulated["link"]) == (1, -1)
    assert hook.name(accumulated["node"]) == "torch::autograd::AccumulateGrad"


def test_only_what_is_sent_is_recorded(hook) -> None:
    rows = torch.ones(4, 2)
    with hook.installed():
        with FakeTensorMode():
            send(torch.empty(4, 2))
        assert hook.records() == []
        with CommDebugMode():
            send(rows)
    assert len(hook.calls()) == 1


def test_no_error_of_the_recording_reaches_the_training(hook) -> None:
    def fails(kind: str, name: Any) -> int:
        raise ZeroDivisionError("a defect")

    hook.number = fails
    rows, output = torch.ones(4, 2), torch.empty(4, 2)
    with hook.installed():
        dist.all_to_all_single(output, rows)
    assert torch.equal(output, rows)
    assert hook.records() == []
    ((operator, error),) = hook.errors
    assert operator == "alltoall_base_"
    assert "a defect" in error


def test_a_work_that_nobody_waits_for_is_not_kept(hook) -> None:
    rows = torch.ones(4, 2)
    with hook.installed():
        group, options = dist.group.WORLD, dist.AllToAllOptions()
        work = group.alltoall_base(torch.empty(4, 2), rows, [], [], options)
        reference = weakref.ref(work)
        work.wait()
        del work
        send(rows)
        gc.collect()
        assert reference() is None


def test_contexts_of_a_thread_end_with_their_block(hook) -> None:
    rows = torch.ones(4, 2)
    with hook.installed():
        send(rows)
        with capture.at(label="inner"):
            send(rows)
        send(rows)
    before, inner, after = [hook.name(call["context"]) for call in hook.calls()]
    assert before == after == CallContext()
    assert inner == CallContext(label="inner")


def test_a_removed_hook_records_nothing(hook) -> None:
    rows = torch.ones(4, 2)
    with hook.installed():
        pass
    send(rows)
    assert hook.records() == []


@pytest.mark.parametrize(
    "hook", [pytest.param("native", marks=pytest.mark.slow)], indirect=True
)
def test_only_calls_are_dropped_from_a_full_queue(hook) -> None:
    long = 1 << 20
    fill = torch.zeros(long, dtype=torch.int64)
    fill[0], fill[1] = CALL, long
    for _ in range(4):
        hook.queue.put(fill.numpy())
    end = torch.tensor([END, 5, 1, 2, 3]).numpy()
    hook.queue.put(end)
    content, dropped = hook.queue.take()
    assert dropped == 1
    assert len(content) == 8 * (3 * long + 5)
    hook.queue.put(end)
    assert hook.records() == [(END, 5, 1, 2, 3)]
