"""Validation of the arguments of a recorder, and of the values passed to it later.

Arguments are rejected.  Invalid losses, token counts and kinds of steps are omitted and
counted; callers handle the exceptions of :func:`demand_of`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from moetraffic.arrays import Int64
from moetraffic.capture.annotate import require, shown
from moetraffic.errors import CaptureError
from moetraffic.trace.model import MOST_TOKEN_SAMPLE, NONE_BEFORE, ROUTING, STEP_KINDS

if TYPE_CHECKING:
    import torch.distributed as dist

LARGEST_COUNT = 2**31 - 1
MOST_EXPERTS = 1 << 16
OUTSIDE = -(1 << 40)
"""Every count of a demand whose ids contain one that is no expert, less that id.

It is computed on the device of the ids, where reading an id would synchronize.
"""
LONGEST_NAME = 1000  # characters


def check_names_and_counts(**values: Any) -> None:
    """Check that names (text) and counts of the metadata can be stored in a trace."""
    for name, value in values.items():
        if isinstance(value, str):
            valid = len(value) <= LONGEST_NAME and value.isprintable()
            rule = f"{name} is one line of at most {LONGEST_NAME} characters"
        else:
            valid = type(value) is int and 0 <= value <= LARGEST_COUNT
            rule = f"{name} is a whole number from 0 on"
        require(valid, rule, value)


def check_experts_per_token(k: int | None) -> None:
    """Check a number of experts per token, None if unknown."""
    valid = k is None or (type(k) is int and 1 <= k <= MOST_EXPERTS)
    rule = f"k is the experts per token, a whole number from 1 to {MOST_EXPERTS}"
    require(valid, rule, k)


def check_limits(*, every: int, most_bytes: int | None) -> None:
    """Check the arguments that limit what a recorder stores."""
    valid = type(every) is int and 1 <= every <= LARGEST_COUNT
    require(valid, "every is a whole number from 1 on", every)
    valid = most_bytes is None or (type(most_bytes) is int and most_bytes > 0)
    require(valid, "most_bytes is a number of bytes above 0", most_bytes)


def check_token_sample(tokens: int) -> None:
    """Check a number of sampled tokens."""
    valid = type(tokens) is int and 0 <= tokens <= MOST_TOKEN_SAMPLE
    require(valid, f"token_sample is from 0 to {MOST_TOKEN_SAMPLE}", tokens)


def checked_placement(
    placement: Mapping[int, Sequence[int]],
) -> dict[int, tuple[int, ...]]:
    """Validate an expert placement: the group rank of each expert, by layer."""
    try:
        checked = {
            operator.index(layer): tuple(operator.index(m) for m in members)
            for layer, members in placement.items()
        }
        valid = all(min(m, default=0) >= 0 for m in checked.values())
    except (TypeError, AttributeError):
        checked, valid = {}, False
    rule = "a placement is, by layer, the group rank of each expert, from 0 on"
    require(valid, rule, placement)
    return checked


def checked_groups(
    groups: Mapping[str, dist.ProcessGroup | None],
) -> dict[str, str]:
    """Validate process groups; return their kinds by group name."""
    for kind, group in groups.items():
        check_names_and_counts(groups=str(kind))
        valid = group is None or hasattr(group, "group_name")
        require(valid, "groups are what new_group returned, by their kind", group)
    return {str(g.group_name): str(k) for k, g in groups.items() if g is not None}


class OmittedRecords:
    """Counter of omitted records by kind; calls ``warn`` at the first of each kind."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self.counts: dict[str, int] = {}
        self.reasons: dict[str, str] = {}  # of the first of each kind

    def add(self, kind: str, why: str) -> None:
        """Count an omitted record, and warn if it is the first of its kind."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] == 1:
            self.reasons[kind] = " ".join(why.split())[:200]
            self._warn(f"a {kind} could not be recorded: {self.reasons[kind]}")

    def unread(self, _label: str, error: Exception) -> None:
        """Count a routing whose router could not be read."""
        worded = isinstance(error, CaptureError | ValueError)
        self.add(ROUTING, str(error) if worded else repr(error))


def loss_of(loss: Any, omitted: OmittedRecords) -> Any:
    """Validate a loss (number or one-element tensor); return NaN if it is invalid."""
    if loss is None:
        return math.nan
    try:
        if isinstance(loss, torch.Tensor):
            if loss.is_cpu or loss.numel() != 1:
                return float(loss.item())
            # read later to avoid synchronization; cloned, because it may be overwritten
            return loss.detach().clone()
        if isinstance(loss, str | bytes):
            raise TypeError
        return float(loss)
    except Exception:
        # conversion of an arbitrary object may raise any exception
        omitted.add("loss", f"it is a number, not {shown(loss)}")
        return math.nan


def loss_value(loss: Any) -> float:
    """Convert a validated loss to a float, which waits for its device."""
    try:
        return float(loss)
    except Exception:
        # the device has failed: the other records of the step remain valid
        return math.nan


def tokens_of(tokens: Any, omitted: OmittedRecords) -> int:
    """Validate a token count; return -1 if it is unknown or invalid."""
    try:
        count = -1 if tokens is None else operator.index(tokens)
    except Exception:
        count = -1
    if tokens is None or 0 <= count < 2**63:
        return count
    omitted.add("token count", f"it is a whole number from 0 on, not {shown(tokens)}")
    return -1


def step_kind_of(kind: Any, omitted: OmittedRecords) -> int:
    """Return the index of a step's kind in STEP_KINDS; -1 if not given or invalid."""
    if isinstance(kind, str) and kind in STEP_KINDS:
        return STEP_KINDS.index(kind)
    if kind is not None:
        every = ", ".join(STEP_KINDS)
        omitted.add("step kind", f"{shown(kind)} is none of {every}: it is inferred")
    return -1


def demand_of(demand: Any, dropped: Any) -> tuple[list[int], list[int] | None]:
    """Validate the token copies per expert of a routing, and the dropped ones of them.

    A TypeError or ValueError says what is wrong.
    """
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
    """Validate token copies per expert; return them as ``[E]`` int64 on the host."""
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
