"""What the numbers of a workload may be, whatever they are together.

A trace holds integers as int64, so a larger one could be trained with and not be
written.  Beyond that, the ranges are far wider than any run that is known, and narrow
enough that nothing is computed for minutes before it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = 1e12

SIZES = ("dp", "tp", "pp", "ep", "cp", "etp", "zero", "shard", "ulysses")
"""Fields of a layout that are whole numbers."""

RANGES: dict[str, tuple[float, float]] = {
    # the model
    "layers": (1, 10_000),
    "hidden": (1, 1_000_000),
    "heads": (1, 100_000),
    "sequence": (1, 100_000_000),
    "vocabulary": (2, 100_000_000),
    "moe_every": (1, 10_000),
    "experts": (0, 1_000_000),
    "mtp": (0, 1_000),
    **dict.fromkeys(
        (
            *("encoder_layers", "target_sequence", "segments", "kv_heads", "head_size"),
            *("query_rank", "kv_rank", "rope_size", "value_size", "moe_first"),
            *("ffn", "expert_ffn", "shared_ffn"),
        ),
        (0, LARGEST_INTEGER),
    ),
    # routing
    "k": (1, 1_000_000),
    "capacity_factor": (-LARGEST_NUMBER, 1_000_000),  # where it counts: above 0
    "balance": (0, 1_000_000),
    "z_loss": (0, 1_000_000),
    # the layout: products of three are integers of numpy
    **dict.fromkeys(SIZES, (1, 1_000_000)),
    "pp": (1, 10_000),
    **dict.fromkeys(("etp", "zero", "shard", "ulysses"), (0, 1_000_000)),
    # the training
    "iterations": (1, 1_000_000_000_000),
    "micro_batch": (1, 1_000_000_000),
    "accumulation": (1, 1_000_000),
    "learning_rate": (1e-30, 1_000),
    "warmup": (0, 1_000_000_000_000),
    "weight_decay": (0, 1_000),
    "clip": (0, LARGEST_NUMBER),
    "seed": (0, LARGEST_INTEGER),
    "data_seed": (0, LARGEST_INTEGER),
}
"""Least and greatest value of a field of a workload's parts, both allowed."""


def outside(part: Any) -> Iterator[tuple[str, str]]:
    """The fields of a part that no run can have: not of their type, or out of range.

    Parameters
    ----------
    part
        A frozen dataclass; fields of other types than bool, int, float and str are
        not looked at.

    Yields
    ------
    (str, str)
        A broken rule with its value, and the remedy.
    """
    for field in fields(part):
        value: Any = getattr(part, field.name)
        kind = str(field.type)
        if kind.endswith(" | None"):
            if value is None:
                continue
            kind = kind.removesuffix(" | None")
        option = field.name.replace("_", "-")
        if field.name in SIZES:
            kind = "int"  # of one layout, whose rules say more
        if kind not in _TYPES:
            continue
        types, words = _TYPES[kind]
        # True is an int to Python, and no count to anybody
        if type(value) not in types:
            yield f"{option} must be {words}, but is {value!r}", f"change --{option}"
        elif kind == "float" and not math.isfinite(value):
            yield (
                f"{option} must be a finite number, but is {value}",
                f"change --{option}",
            )
        elif kind in ("int", "float"):
            yield from _beyond(option, value, field.name)


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
}


def _beyond(option: str, value: float, name: str) -> Iterator[tuple[str, str]]:
    widest = LARGEST_INTEGER if isinstance(value, int) else LARGEST_NUMBER
    least, most = RANGES.get(name, (-widest, widest))
    if value < least:
        rule = f"{option} must be at least {_figure(least)}, but is {value}"
        positive = "" if least == 0 else "a positive number"
        counted = isinstance(value, int) and least in (0, 1)
        give = f"give --{option} {positive or 'a non-negative number'}"
        yield rule, give if counted else f"raise --{option}"
    elif value > most:
        yield (
            f"{option} must be at most {_figure(most)}, but is {value}",
            f"lower --{option}",
        )


def _figure(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
