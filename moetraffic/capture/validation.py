"""Validation of the arguments of a recorder, and of the values passed to it later.

Arguments are rejected by a CaptureError.  Values that are passed later are omitted and
counted: functions that check them raise an error that says what is wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from moetraffic.arrays import Int64
from moetraffic.capture.annotate import require, shown
from moetraffic.errors import CaptureError
from moetraffic.trace.model import NONE_BEFORE, STEP_KINDS

if TYPE_CHECKING:
    import torch.distributed as dist

LARGEST_COUNT = 2**31 - 1
OUTSIDE = -(1 << 40)
"""Every count of a demand whose ids contain one that is no expert, less that id.

It is computed on the device of the ids, where reading an id would synchronize.
"""
LONGEST_NAME = 1000  # characters


def check_name(name: str, value: str) -> None:
    """Check a name of the metadata."""
    valid = len(value) <= LONGEST_NAME and value.isprintable()
    require(valid, f"{name} is one line of at most {LONGEST_NAME} characters", value)


def check_number(name: str, value: int, least: int, most: int = LARGEST_COUNT) -> None:
    """Check a whole number."""
    valid = type(value) is int and least <= value <= most
    require(valid, f"{name} is a whole number from {least} to {most}", value)


def checked_placement(
    placement: Mapping[int, Sequence[int]],
) -> dict[int, tuple[int, ...]]:
    """Validate an expert placement: the group rank of each expert, by layer."""
    rule = "a placement is, by layer, the group rank of each expert, from 0 on"
    try:
        checked = {
            operator.index(layer): tuple(operator.index(m) for m in members)
            for layer, members in placement.items()
        }
    except (TypeError, AttributeError):
        checked = {0: (-1,)}
    require(all(min(m, default=0) >= 0 for m in checked.values()), rule, placement)
    return checked


def checked_groups(
    groups: Mapping[str, dist.ProcessGroup | None],
) -> dict[str, str]:
    """Validate process groups; return their kinds by group name."""
    rule = "groups are what new_group returned, by their kind"
    for kind, group in groups.items():
        check_name("groups", str(kind))
        require(group is None or hasattr(group, "group_name"), rule, group)
    return {str(g.group_name): str(k) for k, g in groups.items() if g is not None}


class OmittedRecords:
    """Counter of omitted records by kind; calls ``warn`` at the first of each kind."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self.counts: dict[str, int] = {}
        self.reasons: dict[str, str] = {}  # of the first of each kind

    def add(self, kind: str, error: Exception) -> None:
        """Count an omitted record, and warn if it is the first of its kind."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] == 1:
            worded = isinstance(error, CaptureError | ValueError | TypeError)
            why = str(error) if worded else repr(error)
            self.reasons[kind] = " ".join(why.split())[:200]
            self._warn(f"a {kind} could not be recorded: {self.reasons[kind]}")

    def checked(
        self, kind: str, check: Callable[[Any], Any], value: Any, otherwise: Any
    ) -> Any:
        """Return a checked value; ``otherwise`` if it is None or omitted."""
        try:
            return otherwise if value is None else check(value)
        except Exception as error:
            # conversion of an arbitrary object may raise any exception
            self.add(kind, error)
            return otherwise


def loss_of(loss: Any) -> float | torch.Tensor:
    """Check a loss; return a number, or a tensor if a device has not computed it."""
    try:
        if isinstance(loss, torch.Tensor) and not loss.is_cpu and loss.numel() == 1:
            # read later to avoid synchronization; cloned, because it may be overwritten
            return loss.detach().clone()
        if isinstance(loss, str | bytes):
            raise TypeError
        return float(loss)
    except Exception:
        raise TypeError(f"it is a number, not {shown(loss)}") from None


def tokens_of(tokens: Any) -> int:
    """Check a token count."""
    try:
        if 0 <= (count := operator.index(tokens)) < 2**63:
            return count
    except Exception:
        count = -1
    raise TypeError(f"it is a whole number from 0 on, not {shown(tokens)}")


def step_kind_of(kind: Any) -> int:
    """Return the index of a step's kind in STEP_KINDS."""
    if isinstance(kind, str) and kind in STEP_KINDS:
        return STEP_KINDS.index(kind)
    every = ", ".join(STEP_KINDS)
    raise TypeError(f"{shown(kind)} is none of {every}: it is inferred")


def demand_of(demand: Any, dropped: Any) -> tuple[list[int], list[int] | None]:
    """Check the token copies per expert of a routing, and the dropped ones of them."""
    counts = counts_of(demand, "demand")
    if dropped is None:
        return counts.tolist(), None
    scalar = isinstance(dropped, torch.Tensor) and not dropped.dim()
    if scalar and (unknown := dropped.item()) in (-1, NONE_BEFORE):
        return counts.tolist(), [int(unknown)] * len(counts)
    missed = counts_of(dropped, "dropped")
    if len(missed) != len(counts):
        raise ValueError(
            f"dropped has {len(missed)} counts, but demand has {len(counts)}"
        )
    if (missed > counts).any():
        raise ValueError("more is dropped than was routed")
    return counts.tolist(), missed.tolist()


def counts_of(values: Any, name: str) -> Int64:
    """Check token copies per expert; return them as ``[E]`` int64 on the host."""
    try:
        tensor = torch.as_tensor(values)
        fractions = tensor.is_floating_point() or tensor.is_complex()
        if fractions or tensor.dtype == torch.bool or tensor.dim() != 1:
            raise TypeError
        counts: Int64 = tensor.detach().to("cpu", torch.int64).numpy()
        least, most = int(counts.min()), int(counts.max())
    except (RuntimeError, TypeError, ValueError):
        raise TypeError(
            f"{name} has one count per expert, but is {shown(values)}"
        ) from None
    if least < OUTSIDE // 2:
        expert = least - OUTSIDE
        remedy = (
            "ids are from 0 on: give -1 for none"
            if expert < 0
            else "capture.router, or an attribute of the router, says "
            f"experts={len(counts)}: give experts={expert + 1}, or more, or register a "
            "narrower class if this one matches other layers (an output head)"
        )
        raise ValueError(f"expert {expert} was chosen, but {remedy}")
    if least < 0 or most > LARGEST_COUNT:
        raise ValueError(f"{name} is counted from 0 on, but is {least} to {most}")
    return counts


def cause(error: BaseException | None) -> str:
    """Describe the exception that ended a rank, completing "rank 2 was ..."."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return "interrupted"
    line = next(iter(str(error).splitlines()), "")[:120]
    return f"ended by {type(error).__name__}" + (f" ({line})" if line else "")
