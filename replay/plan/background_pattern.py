"""Background (dense) traffic of a model under a parallel layout.

All collectives of one iteration except expert exchanges, which the trace contains:
reductions of gradients, of tensor-parallel activations, of the tied embedding and of
gradient norms, and pipeline messages.  Sizes and groups of each call are those of
:func:`moetraffic.patterns.megatron_pattern` or
:func:`moetraffic.patterns.workload_pattern`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.replay.scale.order import merged
from moetraffic.trace.model import ALL_TO_ALL, Site, WireForm

from .background import BackgroundCollective, BackgroundTraffic

if TYPE_CHECKING:
    # importing patterns is slow, and few replays have background traffic
    from moetraffic.patterns import Preset
    from moetraffic.patterns.pattern import Call, Pattern

_SIZES = ("tp", "pp", "dp", "cp", "ep", "etp", "micro-batch", "accumulation", "zero")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "dtype": (),
    "sequence-parallel": ("0", "1"),
    "recompute": ("none", "full"),
    "library": ("megatron", "moetraffic"),
}
OPTIONS = (*_SIZES, *_WORDS)
"""Names accepted by ``--alongside NAME=VALUE``, as in ``moetraffic pattern``."""


@dataclass(frozen=True, kw_only=True)
class BackgroundPattern:
    """Model and parallel layout of background traffic, from command-line options.

    Raises
    ------
    ReplayError
        If an option is unknown, or its value is invalid.
    """

    layout: str  # "tp=2,pp=2,dp=2"
    model: str  # a preset
    options: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        given: dict[str, str] = {}
        for part in self.layout.split(","):
            name, equals, value = part.strip().partition("=")
            number = value.isdecimal() and value.isascii() and len(value) <= 6
            words = _WORDS.get(name)
            fits = number if words is None else (value in words or not words)
            if not equals or name not in OPTIONS or name in given or not fits:
                raise ReplayError(
                    "--alongside takes NAME=VALUE separated by commas, each once, of "
                    f"{', '.join(OPTIONS)}, but one is {part.strip()[:40]!r}: "
                    "tp=2,pp=2,dp=2 are two ranks of each kind"
                )
            given[name] = value
        object.__setattr__(self, "options", given)

    def pattern(self) -> Pattern:
        """Build the communication pattern of one iteration, with expert exchanges.

        Raises
        ------
        LayoutError
            If the model is unknown, or the layout does not fit it.
        """
        from moetraffic.patterns import (
            MegatronGrid,
            Strategy,
            megatron_pattern,
            preset,
        )

        found = preset(self.model)
        size = {name: int(self.options.get(name, 1)) for name in _SIZES}
        size["accumulation"] = int(self.options.get("accumulation", size["pp"]))
        size["micro-batch"] = int(self.options.get("micro-batch", found.micro_batch))
        if self.options.get("library", "megatron") == "moetraffic":
            return _workload(found, size, self.options)
        # tensor-parallel experts need sequence parallelism to hold each token once
        split = bool(found.model.experts) and size["tp"] > 1
        strategy = Strategy(
            grid=MegatronGrid(
                tp=size["tp"],
                cp=size["cp"],
                dp=size["dp"],
                pp=size["pp"],
                ep=size["ep"],
                etp=int(self.options.get("etp", 0)),
            ),
            micro_batch=size["micro-batch"],
            accumulation=size["accumulation"],
            zero=int(self.options.get("zero", 0)),
            sequence_parallel=self.options.get("sequence-parallel", f"{split:d}")
            == "1",
            recompute=self.options.get("recompute", "none"),
            dtype=self.options.get("dtype", "bfloat16"),
        )
        return megatron_pattern(found.model, strategy, found.gating)

    def traffic(self, world: int) -> BackgroundTraffic:
        """Build the background traffic for a given number of replay ranks.

        Parameters
        ----------
        world
            Number of ranks of the replay.

        Raises
        ------
        ReplayError
            If the layout has a different number of ranks, or no dense traffic.
        """
        pattern = self.pattern()
        if pattern.grid.world != world:
            sizes = ", ".join(f"{k}={v}" for k, v in self.options.items())
            raise ReplayError(
                f"dense traffic runs on the replay's {world} ranks, but {sizes} are "
                f"{pattern.grid.world}: change --alongside, or --fold or --expand"
            )
        return background_traffic(pattern, identity=f"{self.model} {self.layout}")

    def arguments(self) -> list[str]:
        """Return the equivalent options of ``moetraffic replay``."""
        return ["--alongside", self.layout, "--model", self.model]


def parse_background(layout: str, model: str) -> BackgroundPattern | None:
    """Parse ``--alongside`` and ``--model``; return None if both are empty.

    Raises
    ------
    ReplayError
        If only one of them is given.
    """
    if not layout and not model:
        return None
    if not layout or not model:
        raise ReplayError(
            "background traffic needs a model and a layout, but "
            f"{'--model' if layout else '--alongside'} is missing: give both"
        )
    return BackgroundPattern(layout=layout, model=model)


def _workload(
    found: Preset, size: Mapping[str, int], options: Mapping[str, str]
) -> Pattern:
    """Build the pattern of training with ``moetraffic.models`` (fairscale, torch)."""
    from moetraffic.patterns import ParallelLayout, Training, Workload, workload_pattern

    layout = ParallelLayout(
        dp=size["dp"],
        tp=size["tp"],
        pp=size["pp"],
        ep=size["ep"],
        cp=size["cp"],
        zero=int(options.get("zero", 0)),
    )
    training = Training(
        micro_batch=size["micro-batch"],
        accumulation=size["accumulation"],
        dtype=options.get("dtype", "bfloat16"),
        recompute=options.get("recompute") == "full",
    )
    return workload_pattern(
        Workload(
            model=found.model, gating=found.gating, layout=layout, training=training
        )
    )


def background_traffic(pattern: Pattern, *, identity: str) -> BackgroundTraffic:
    """Extract the dense collectives of a communication pattern as background traffic.

    Parameters
    ----------
    pattern
        Pattern of one iteration, all ranks.
    identity
        Identifies the traffic; a hash of all operations is appended.

    Returns
    -------
    BackgroundTraffic
        Collectives in one order for all ranks, which preserves the order of each rank
        where the ranks agree.  They differ only in the order of pipeline messages,
        which are asynchronous.

    Raises
    ------
    ReplayError
        If the pattern has no dense collective.
    """
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    operations: list[BackgroundCollective] = []
    known: dict[tuple[int, Call, int], list[int]] = {}
    orders: list[list[int]] = []
    mine: dict[tuple[int, str], tuple[int, ...]] = {}
    for kind in pattern.kinds:
        for ranks in pattern.grid.groups(kind):
            mine |= {(rank, kind): ranks for rank in ranks}
    slots: dict[tuple[int, Call], int] = {}
    for rank in range(pattern.grid.world):
        order: list[int] = []
        seen: dict[tuple[int, Call], int] = {}
        for call, _ in pattern.program(rank):
            ranks = mine[rank, call.group]
            if call.operation == ALL_TO_ALL or len(ranks) == 1:
                continue
            group = groups.setdefault((call.group, ranks), len(groups))
            nth = seen.get((group, call), 0)
            seen[group, call] = nth + 1
            if (group, call, nth) not in known:
                # the call index counts calls of a site regardless of their size
                spot = group, replace(call, size=0, root=0, exact=True)
                slot = slots.get(spot, 0)
                slots[spot] = slot + 1
                made = _collectives(call, group, ranks, slot)
                first = len(operations)
                operations += made
                known[group, call, nth] = list(range(first, len(operations)))
            order += [n for n in known[group, call, nth] if _joins(operations[n], rank)]
        orders.append(order)
    if not operations:
        raise ReplayError(
            f"background traffic consists of dense collectives, but {pattern.name} has "
            "none in this layout: raise tp, pp or dp"
        )
    sequence = merged([np.array(order, np.int64) for order in orders]).tolist()
    ordered = tuple(operations[n] for n in sequence)
    kinds = tuple(kind for kind, _ in groups)
    members = tuple(ranks for _, ranks in groups)
    digest = hashlib.sha256(repr((members, kinds, ordered)).encode()).hexdigest()
    return BackgroundTraffic(
        groups=members,
        group_kinds=kinds,
        operations=ordered,
        identity=f"{identity} {digest}",
    )


def _collectives(
    call: Call, group: int, ranks: tuple[int, ...], slot: int
) -> list[BackgroundCollective]:
    """Convert a call to one collective, or to one message per sender-receiver pair."""
    site = Site(
        group=group,
        operation=call.operation,
        layer=call.layer,
        direction=call.direction,
        slot=slot,
        dtype=call.dtype,
        row_bytes=call.row_bytes,
        label=call.label,
        wire=WireForm.CONSTANT,
    )
    if call.operation == "send_recv":
        found = []
        for source, destination in call.messages(len(ranks)):
            constant = [0] * len(ranks)
            constant[source] = call.size
            found.append(
                BackgroundCollective(
                    group=group,
                    kind=call.operation,
                    size=call.size,
                    sender=ranks[source],
                    receiver=ranks[destination],
                    site=replace(
                        site, peers=(source, destination), constant=tuple(constant)
                    ),
                )
            )
        return found
    root = ranks[call.root]
    return [
        BackgroundCollective(
            group=group,
            kind=call.operation,
            size=call.size,
            sender=root if call.operation in ("broadcast", "scatter") else -1,
            receiver=root if call.operation in ("reduce", "gather") else -1,
            site=replace(site, constant=(call.size,) * len(ranks)),
        )
    ]


def _joins(one: BackgroundCollective, rank: int) -> bool:
    return one.kind != "send_recv" or rank in (one.sender, one.receiver)
