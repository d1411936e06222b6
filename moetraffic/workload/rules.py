"""Rules as tables: where one is broken, and one sentence with its values and remedy.

The range of every number of a workload stands here, too.  A trace holds integers as
int64, and ranges are far wider than any run, but narrow enough that nothing is computed
for minutes before it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np

from moetraffic.errors import LayoutError

Values: TypeAlias = Any
"""A number, or an array that broadcasts with others."""

Rule: TypeAlias = tuple[Callable[[Any], Values], str]
"""Where a subject breaks it (bool, or an array of it), and "rule: remedy" as a format
of the subject: ``{0.tp}``."""

Broken: TypeAlias = tuple[str, str]
"""A rule that is broken, with its values, and the remedy."""


class _Element:
    """Attributes of a subject as text, of arrays the element at a flat index."""

    def __init__(self, subject: object, shape: tuple[int, ...], index: int) -> None:
        self._subject, self._shape, self._index = subject, shape, index

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._subject, name)
        if np.ndim(value):
            value = np.broadcast_to(value, self._shape).flat[self._index]
        kind = np.asarray(value).dtype.kind
        if kind == "O":
            return _Element(value, self._shape, self._index)
        return str(value) if kind == "U" else f"{float(value):.12g}"


def broken(rules: Iterable[Rule], subject: object) -> list[Broken]:
    """Rules that a subject breaks somewhere, with the first values that break each."""
    sentences = []
    for breaks, text in rules:
        where = np.asarray(breaks(subject), bool)
        if where.any():
            shape = np.broadcast_shapes(where.shape, getattr(subject, "shape", ()))
            index = np.broadcast_to(where, shape).argmax()
            place = _Element(subject, shape, int(index))
            rule, _, remedy = text.rpartition(": ")
            sentences.append((rule.format(place), remedy.format(place)))
    return sentences


def refuse(sentences: Sequence[Broken]) -> None:
    """Raise the first broken rule.

    Raises
    ------
    LayoutError
        With the rule, its values and the remedy.
    """
    for rule, remedy in sentences:
        raise LayoutError(f"{rule}: {remedy}")


def one_of(field: str, names: Sequence[str], what: str = "") -> Rule:
    """A field is one of some names."""
    option = field.replace("_", "-")
    known = ", ".join(filter(None, names))
    text = f"{what or option} is one of {known}, not {{0.{field}!r}}: see --{option}"
    return lambda subject: getattr(subject, field) not in names, text


LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = 1e12

SIZES = ("dp", "tp", "pp", "ep", "cp", "etp", "zero", "shard")
"""Fields of a layout that are whole numbers."""

RANGES: dict[str, tuple[float, float]] = {
    # the model
    **dict.fromkeys(("layers", "moe_every"), (1, 10_000)),
    **dict.fromkeys(("hidden", "experts", "k"), (1, 1_000_000)),
    "heads": (1, 100_000),
    "sequence": (1, 100_000_000),
    "vocabulary": (2, 100_000_000),
    "experts": (0, 1_000_000),
    "mtp": (0, 1_000),
    **dict.fromkeys(
        (
            *("encoder_layers", "target_sequence", "segments", "kv_heads", "head_size"),
            *("query_rank", "kv_rank", "rope_size", "value_size", "moe_first"),
            *("ffn", "expert_ffn", "shared_ffn", "seed", "data_seed"),
        ),
        (0, LARGEST_INTEGER),
    ),
    # routing
    "capacity_factor": (-LARGEST_NUMBER, 1_000_000),  # where it counts: above 0
    **dict.fromkeys(("balance", "z_loss"), (0, 1_000_000)),
    # the layout: products of three are integers of numpy
    **dict.fromkeys(SIZES, (1, 1_000_000)),
    "pp": (1, 10_000),
    **dict.fromkeys(("etp", "zero", "shard"), (0, 1_000_000)),
    # the training
    "iterations": (1, 1_000_000_000_000),
    "micro_batch": (1, 1_000_000_000),
    "accumulation": (1, 1_000_000),
    "learning_rate": (1e-30, 1_000),
    "warmup": (0, 1_000_000_000_000),
    "weight_decay": (0, 1_000),
    "clip": (0, LARGEST_NUMBER),
}
"""Least and greatest value of a field of a workload's parts, both allowed."""

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
}


def outside(part: Any) -> list[Broken]:
    """Fields of a frozen dataclass that are not of their type, or out of range."""
    sentences = []
    for field in fields(part):
        value: Any = getattr(part, field.name)
        kind = "int" if field.name in SIZES else str(field.type)
        optional = kind.endswith(" | None")
        kind = kind.removesuffix(" | None")
        if kind not in _TYPES or (optional and value is None):
            continue
        option = field.name.replace("_", "-")
        types, words = _TYPES[kind]
        rule, remedy = "", f"change --{option}"
        # True is an int to Python, and no count to anybody
        if type(value) not in types:
            rule = f"must be {words}, but is {value!r}"
        elif kind in ("int", "float"):
            widest = LARGEST_INTEGER if isinstance(value, int) else LARGEST_NUMBER
            least, most = RANGES.get(field.name, (-widest, widest))
            if not math.isfinite(value):
                rule = f"must be a finite number, but is {value}"
            elif value < least:
                kinds = {0.0: "a non-negative number", 1.0: "a positive number"}
                give = kinds.get(float(least)) if isinstance(value, int) else ""
                rule = f"must be at least {least:g}, but is {value}"
                remedy = f"give --{option} {give}" if give else f"raise --{option}"
            elif value > most:
                limit = most if isinstance(most, int) else f"{most:g}"
                rule = f"must be at most {limit}, but is {value}"
                remedy = f"lower --{option}"
        if rule:
            sentences.append((f"{option} {rule}", remedy))
    return sentences
