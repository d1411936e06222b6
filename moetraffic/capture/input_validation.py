"""Validation of the arguments of a recorder, and of the values passed to it later.

Arguments are rejected.  Invalid losses, token counts and kinds of steps are omitted
without an exception; callers handle the exceptions of :func:`counts_of` and
:func:`demand_of`.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from moetraffic.arrays import Int32
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
MOST_KINDS = 20


def check_names_and_counts(**values: Any) -> None:
    """Check that names (text) and counts of the metadata can be stored in a trace."""
    for name, value in values.items():
        if isinstance(value, str):
            sound = len(value) <= LONGEST_NAME and "\0" not in value
            sound = sound and not any("\ud800" <= c <= "\udfff" for c in value)
            rule = f"text of at most {LONGEST_NAME} characters"
        else:
            sound = isinstance(value, int) and not isinstance(value, bool)
            sound = sound and 0 <= value <= LARGEST_COUNT
            rule = "a whole number from 0 on"
        if not sound:
            raise CaptureError(
                f"{name} is {rule}, but {str(value)[:40]!r} was given: change it"
            )


def check_experts_per_token(k: int | None) -> None:
    """Check a number of experts per token, None if unknown."""
    if k is not None and not (type(k) is int and 1 <= k <= MOST_EXPERTS):
        raise CaptureError(
            f"k is the number of experts per token, a whole number from 1 to "
            f"{MOST_EXPERTS}, but {str(k)[:40]!r} was given: leave it out if it is "
            "unknown"
        )


def check_limits(*, window: int, every: int, most_bytes: int | None) -> None:
    """Check the arguments that limit what a recorder stores or may lose."""
    check_names_and_counts(window=window, every=every)
    if window < 1:
        raise CaptureError(
            f"a window is at least one step, but is {window}: raise window"
        )
    if every < 1:
        raise CaptureError(
            f"every N-th iteration is recorded, but N is {every}: give 1 for all"
        )
    if most_bytes is not None and not (type(most_bytes) is int and most_bytes > 0):
        raise CaptureError(
            f"the maximum size is a number of bytes above 0, not {most_bytes!r}: "
            "change most_bytes"
        )


def check_token_sample(tokens: int) -> None:
    """Check a number of sampled tokens."""
    check_names_and_counts(token_sample=tokens)
    if tokens > MOST_TOKEN_SAMPLE:
        raise CaptureError(
            f"the experts of at most {MOST_TOKEN_SAMPLE} tokens of a micro-batch are "
            f"recorded, but token_sample is {tokens}: lower it"
        )


def checked_placement(
    placement: Mapping[int, Sequence[int]],
) -> dict[int, tuple[int, ...]]:
    """Validate an expert placement: the group rank of each expert, by layer."""
    try:
        checked = {
            operator.index(layer): tuple(operator.index(m) for m in members)
            for layer, members in placement.items()
        }
        sound = all(min(m, default=0) >= 0 for m in checked.values())
    except (TypeError, AttributeError):
        checked, sound = {}, False
    if not sound:
        raise CaptureError(
            "a placement is, by layer, the group rank of each expert, from 0 on, but "
            f"{str(placement)[:60]!r} was given: change it"
        )
    return checked


def checked_groups(
    groups: Mapping[str, dist.ProcessGroup | None],
) -> dict[str, str]:
    """Validate process groups; return their kinds by group name."""
    for kind, group in groups.items():
        check_names_and_counts(groups=str(kind))
        if group is not None and not hasattr(group, "group_name"):
            raise CaptureError(
                "groups are process groups of torch.distributed by their kind, but "
                f"{kind!r} is {type(group).__name__}: give what new_group returned"
            )
    return {str(g.group_name): str(k) for k, g in groups.items() if g is not None}


class OmittedRecords:
    """Counter of omitted records by kind; calls ``warn`` at the first of each kind."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kind: str, why: str) -> None:
        """Count an omitted record, and warn if it is the first of its kind."""
        self._counts[kind] += 1
        if kind not in self._first and len(self._first) < MOST_KINDS:
            self._first[kind] = " ".join(why.split())[:200]
            self._warn(f"a {kind} could not be recorded: {self._first[kind]}")

    def unread(self, _label: str, error: Exception) -> None:
        """Count a routing whose router could not be read."""
        worded = isinstance(error, CaptureError | ValueError)
        self.add(ROUTING, str(error) if worded else repr(error))

    @property
    def words(self) -> str:
        """Counts and first reasons of omitted records by kind, as text; "" for none."""
        return ", ".join(
            f"{self._counts[kind]} x {kind} ({why})"
            for kind, why in list(self._first.items())
        )


def loss_of(loss: Any, left_out: OmittedRecords) -> Any:
    """Validate a loss (number or one-element tensor); return NaN if it is invalid."""
    if loss is None:
        return math.nan
    if isinstance(loss, torch.Tensor):
        if loss.numel() == 1 and not loss.is_complex():
            if loss.is_cpu:
                return loss.item()
            # read later to avoid synchronization; cloned, because it may be overwritten
            return loss.detach().clone()
        left_out.add("loss", f"it is one number, not a tensor of {tuple(loss.shape)}")
        return math.nan
    try:
        if isinstance(loss, str | bytes):
            raise TypeError
        return float(loss)
    except Exception:
        # conversion of an arbitrary object may raise any exception
        left_out.add("loss", f"it is a number, not {_shown(loss)}")
        return math.nan


def loss_value(loss: Any) -> float:
    """Convert a validated loss to a float, which waits for its device."""
    try:
        return float(loss)
    except Exception:
        # the device has failed: the other records of the step remain valid
        return math.nan


def tokens_of(tokens: Any, left_out: OmittedRecords) -> int:
    """Validate a token count; return -1 if it is unknown or invalid."""
    if tokens is None:
        return -1
    try:
        count = operator.index(tokens)
    except Exception:
        count = -1
    if 0 <= count < 2**63:
        return count
    left_out.add("token count", f"it is a whole number from 0 on, not {_shown(tokens)}")
    return -1


def step_kind_of(kind: Any, left_out: OmittedRecords) -> int:
    """Return the index of a step's kind in STEP_KINDS; -1 if not given or invalid."""
    if isinstance(kind, str) and kind in STEP_KINDS:
        return STEP_KINDS.index(kind)
    if kind is not None:
        every = ", ".join(STEP_KINDS)
        left_out.add("step kind", f"{_shown(kind)} is none of {every}: it is inferred")
    return -1


def counts_of(values: Any, name: str) -> Int32:
    """Validate token copies per expert; return them as ``[E]`` int32 on the host.

    Raises
    ------
    TypeError, ValueError
        If they are not a one-dimensional array of non-negative integers.
    """
    try:
        tensor = torch.as_tensor(values)
    except (RuntimeError, TypeError, ValueError):
        raise TypeError(f"{name} is a row of counts, not {_shown(values)}") from None
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} counts token copies, but is of {tensor.dtype}")
    if tensor.dim() != 1 or not len(tensor):
        raise ValueError(
            f"{name} has one count per expert, but its shape is {tuple(tensor.shape)}"
        )
    counts = tensor.detach().to("cpu", torch.int64).numpy()
    if counts.min() < OUTSIDE // 2:
        raise ValueError(_no_expert(int(counts.min()) - OUTSIDE, len(counts)))
    if counts.min() < 0 or counts.max() > LARGEST_COUNT:
        raise ValueError(
            f"{name} is counted from 0 on, but is {counts.min()} to {counts.max()}"
        )
    return counts.astype(np.int32)


def _no_expert(chosen: int, experts: int) -> str:
    """Say that an id is none of the experts, and what to change."""
    if chosen < 0:
        return f"expert {chosen} was chosen, but ids are from 0 on: give -1 for none"
    return (
        f"expert {chosen} was chosen, but capture.router, or an attribute of the "
        f"router, says experts={experts}: give experts={chosen + 1}, or more, or "
        "register a narrower class if this one matches other layers (an output head)"
    )


def demand_of(demand: Any, dropped: Any) -> tuple[list[int], list[int] | None]:
    """Validate the token copies per expert of a routing, and the dropped ones of them.

    Raises
    ------
    TypeError, ValueError
        As :func:`counts_of` does, if dropped has another length, or more than were
        routed.
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
            f"dropped has {len(missed)} counts, but demand has {len(counts)}: give one "
            "per expert"
        )
    if (missed > counts).any():
        raise ValueError("more is dropped than was routed")
    return counts.tolist(), missed.tolist()


def cause(error: BaseException | None) -> str:
    """Describe the exception that ended a rank, completing "rank 2 was ..."."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return "interrupted"
    line = next(iter(str(error).splitlines()), "")[:120]
    return f"ended by {type(error).__name__}" + (f" ({line})" if line else "")


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except Exception:
        return f"a {type(value).__name__}"
