"""Keep book of what a framework sends, apart from the recorder, and compare.

The examples for the frameworks share it: text to train on, and a witness that wraps
the function with which a framework sends and writes down its arguments.  It knows
nothing of the recorder's hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace
from moetraffic.workload import text

SEQUENCE = 32


def batch(rank: int, step: int, rows: int) -> torch.Tensor:
    """``[rows, SEQUENCE + 1]`` bytes of Python's standard library, others a rank."""
    data = torch.frombuffer(text.read().data, dtype=torch.uint8)
    at = torch.Generator().manual_seed(1000 * step + rank)
    starts = torch.randint(0, len(data) - SEQUENCE - 1, (rows,), generator=at)
    return torch.stack([data[s : s + SEQUENCE + 1] for s in starts.tolist()]).long()


class Witness:
    """The book of one rank: what it sent, received and routed, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[int], list[int], list[int]]] = []
        self.routed: list[tuple[int, list[int]]] = []

    def route(self, layer: int, counts: Any) -> None:
        """Note the token copies that each expert gets from this rank."""
        self.routed.append((layer, [int(n) for n in torch.as_tensor(counts).tolist()]))

    def wrap(self, owner: Any, name: str, *, functional: bool = False) -> None:
        """Note each call of ``owner.name``, an all-to-all, and of its gradient.

        Parameters
        ----------
        owner, name
            Where the framework looks the function up.
        functional
            Whether it takes ``(rows, received, sent, group)`` and returns what arrived,
            and differentiates inside torch; otherwise it has the arguments of
            ``torch.distributed.all_to_all_single``, and is called for gradients too.
        """
        real: Callable[..., Any] = getattr(owner, name)

        def in_place(
            output: Any,
            input: Any,
            output_split_sizes: Any = None,
            input_split_sizes: Any = None,
            group: Any = None,
            async_op: bool = False,
        ) -> Any:
            splits = (output_split_sizes, input_split_sizes)
            self._note(input, *splits, len(output), group)
            return real(output, input, *splits, group=group, async_op=async_op)

        def returning(rows: Any, received: Any, sent: Any, group: Any) -> Any:
            self._note(rows, received, sent, len(rows), group)
            output = real(rows, received, sent, group)
            if output.requires_grad:
                # the gradient goes the way back
                output.register_hook(
                    lambda g: self._note(g, sent, received, len(g), group)
                )
            return output

        setattr(owner, name, returning if functional else in_place)

    def _note(
        self, rows: Any, received: Any, sent: Any, arriving: int, group: Any
    ) -> None:
        if hasattr(group, "get_group"):
            group = group.get_group()
        width = dist.get_world_size(group)
        size = rows.element_size() * int(np.prod(rows.shape[1:]))
        self.sent.append(
            (
                _bytes(sent, len(rows), width, size),
                _bytes(received, arriving, width, size),
                dist.get_process_group_ranks(group),
            )
        )

    def verify(self, path: Path) -> None:
        """Compare all ranks' books with the trace; rank 0 says what it found.

        Raises
        ------
        AssertionError
            If anything is other than written down.
        """
        books: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(books, (self.sent, self.routed))
        if dist.get_rank() != 0:
            return
        uneven = 0
        with Trace.open(path) as trace:
            assert trace.meta.complete, trace.meta.missing
            for rank, (sent, routed) in enumerate(books):
                order = trace.order(rank)
                sites = [trace.sites[s] for s in trace.occurrences.site[order]]
                wire = [
                    o
                    for o, s in zip(order, sites, strict=True)
                    if s.operation == ALL_TO_ALL
                ]
                assert len(wire) == len(sent) > 0, (len(wire), len(sent))
                for occurrence, (out, into, ranks) in zip(wire, sent, strict=True):
                    site = trace.sites[trace.occurrences.site[occurrence]]
                    group = trace.groups[site.group].ranks
                    assert list(group) == ranks, (group, ranks)
                    (matrix,) = trace.wire(np.array([occurrence]))
                    member = ranks.index(rank)
                    assert matrix[member].tolist() == out, (matrix[member], out)
                    assert matrix[:, member].tolist() == into, (matrix, into)
                    uneven += len(set(out)) > 1
                told = [
                    o
                    for o, s in zip(order, sites, strict=True)
                    if s.operation == ROUTING
                ]
                assert len(told) == len(routed) > 0, (len(told), len(routed))
                for occurrence, (layer, counts) in zip(told, routed, strict=True):
                    site = trace.sites[trace.occurrences.site[occurrence]]
                    assert site.layer == layer, (site, layer)
                    member = trace.groups[site.group].ranks.index(rank)
                    (demand,) = trace.demand(np.array([occurrence]))
                    assert demand[member].tolist() == counts, (demand, counts)
        exchanges = sum(len(sent) for sent, _ in books)
        decisions = sum(len(routed) for _, routed in books)
        print(
            f"{exchanges} all-to-alls of {len(books)} ranks, forward and backward "
            f"({uneven} of them uneven), and {decisions} routings: captured as sent",
            flush=True,
        )


def _bytes(splits: Any, rows: int, width: int, size: int) -> list[int]:
    """Bytes to each rank; without splits, equal parts."""
    parts = [rows // width] * width if splits is None else splits
    return [int(part) * size for part in parts]
