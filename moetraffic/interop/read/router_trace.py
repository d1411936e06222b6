"""Import Megatron-Core's router traces, ``router_trace_rank{r}.jsonl``.

``{"step", "stage", "block", "layer", "rank", "num_tokens", "topk", "top_indices"}``,
and ``mtp_idx`` for layers that predict further tokens (``megatron/core/transformer/
moe/router_trace.py``).  ``top_indices`` is ``[num_tokens, topk]``: the experts of each
token before any is dropped.  A layer occurs once per micro-batch in a step.  The files
contain neither the number of experts nor their placement.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace.model import ROUTING, Group

from .files import (
    MOST_ITERATIONS,
    MOST_LAYERS,
    MOST_RANKS,
    json_objects,
    rank_in_name,
    whole,
    words,
    wrong,
)
from .rows import Contents, Importer, ImportOptions, Row, Step

EMPTY = re.compile(r"router_trace_rank\d+\.jsonl")  # of a rank without experts
LARGEST_EXPERT = 1 << 16
UNSTAGED = (
    "the pipeline stages are not in the files, which number the layers of a stage, or "
    "of a virtual stage, alike: give --pp (1: there are none)"
)
STAGES = "layers of a pipeline stage counted after the highest one of earlier stages"


class Decision(NamedTuple):
    """Experts that a rank's layer chose in a micro-batch."""

    step: int
    block: tuple[str, int]  # and the number of a block that predicts a further token
    layer: int  # in its block and pipeline stage
    copies: Int64  # by expert, up to the highest chosen one
    k: int


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the router traces of all ranks as routing calls.

    Experts lie on ``options.ep`` ranks in equal parts; without it, the placement is
    unknown.
    """
    contents = Contents()
    decisions: dict[int, list[Decision]] = {}
    for file in files:
        rank, made = _decisions(file, contents)
        if rank in decisions:
            raise TraceError(
                "a rank has one router trace, but two of these files are of rank "
                f"{rank}: import one run at a time"
            )
        decisions[rank] = made
        contents.files[rank] = file.name
    every = [decision for made in decisions.values() for decision in made]
    chosen = max((len(decision.copies) for decision in every), default=0)
    experts = options.experts or chosen
    if not experts:
        raise TraceError(
            "the files hold no routed token, so that the number of experts is "
            "unknown: give --experts"
        )
    if experts < chosen:
        raise TraceError(
            f"the files choose expert {chosen - 1}, but --experts is {experts}: raise "
            "it"
        )
    if not options.experts:
        contents.missing.append(
            f"the number of experts is not in the files, {chosen} were chosen from"
        )
    world = max(options.ranks, max(decisions) + 1)
    groups = _groups(world, experts, options)
    stage_ranks = world // (options.pp or 1)
    layer_of = _layers(decisions, stage_ranks)
    unknown = np.full(experts, -1)  # dropped copies are not recorded
    for rank, made in decisions.items():
        group = next(group for group in groups if rank in group.ranks)
        for step, block, layer, copies, _ in made:
            contents.rows.append(
                Row(
                    rank=rank,
                    operation=ROUTING,
                    group=group,
                    layer=layer_of[rank // stage_ranks, block, layer],
                    label="" if block[0] == "decoder" else f"{block[0]}{block[1]}",
                    iteration=step,
                    sent=np.pad(copies, (0, experts - len(copies))),
                    received=unknown,
                )
            )
        steps = sorted({decision.step for decision in made})
        contents.steps += [Step(rank=rank, iteration=step) for step in steps]
    if options.ep:
        contents.placed = {
            (layer, group): [
                group.ranks[expert * options.ep // experts] for expert in range(experts)
            ]
            for group in groups
            for layer in {row.layer for row in contents.rows}
        }
    topk = {decision.k for decision in every}
    contents.world, contents.experts = world, experts
    contents.k = topk.pop() if len(topk) == 1 else 0
    if options.pp > 1:
        contents.inferred.append(STAGES)
    elif not options.pp and world > 1:
        contents.missing.append(UNSTAGED)
    return contents


def _groups(world: int, experts: int, options: ImportOptions) -> list[Group]:
    """Return the groups of ranks that route to the same experts."""
    pp = options.pp or 1
    if world % pp:
        raise TraceError(
            f"pipeline stages have equally many ranks, but --pp is {pp}, with "
            f"{world} ranks: change --pp or --ranks"
        )
    stage_ranks = world // pp
    ep = options.ep or stage_ranks
    if stage_ranks % ep or (options.ep and experts % ep):
        raise TraceError(
            f"experts lie on ep ranks in equal parts, but ep is {ep}, with "
            f"{stage_ranks} ranks and {experts} experts: change --ep, --experts or "
            "--ranks"
        )
    kind = "ep" if options.ep else "world" if pp == 1 else "other"
    return [
        Group(kind=kind, ranks=tuple(range(first, first + ep)))
        for first in range(0, world, ep)
    ]


def _layers(
    decisions: dict[int, list[Decision]], stage_ranks: int
) -> dict[tuple[int, tuple[str, int], int], int]:
    """Return the layer of a model by stage, block and layer in the files.

    A file numbers the layers of its stage from 0 on; stages are consecutive ranks.
    Layers that predict further tokens are numbered after the last decoder layer.
    """
    names = {
        (rank // stage_ranks, decision.block, decision.layer)
        for rank, made in decisions.items()
        for decision in made
    }
    count: defaultdict[int, int] = defaultdict(int)  # of decoder layers, by stage
    for stage, block, layer in names:
        if block[0] == "decoder":
            count[stage] = max(count[stage], layer + 1)
    others = sorted({name[1:] for name in names if name[1][0] != "decoder"})
    last = sum(count.values())
    layer_of = {}
    for stage, block, layer in names:
        first = sum(count[before] for before in list(count) if before < stage)
        layer_of[stage, block, layer] = first + layer
        if block[0] != "decoder":
            layer_of[stage, block, layer] = last + others.index((block, layer))
    return layer_of


def _decisions(path: Path, contents: Contents) -> tuple[int, list[Decision]]:
    """Read the rank and the routing decisions of a router trace.

    An empty file is that of a rank without experts, such as of a stage of dense layers.
    """
    rank, made = rank_in_name(path), list(_parsed(path, contents))
    ranks = {own for own, _ in made}
    if len(ranks) > 1:
        number, own = next((n, r) for n, (r, _) in enumerate(made) if r != made[0][0])
        raise wrong(path, f"line {number} is of rank {own}, not {made[0][0]}")
    if rank is None and not ranks:
        raise wrong(path, "it holds no decision", "name it like router_trace_rank3")
    return ranks.pop() if ranks else rank or 0, [decision for _, decision in made]


def _parsed(path: Path, contents: Contents) -> Iterator[tuple[int, Decision]]:
    """Yield rank and decision of each line of a router trace."""
    for number, line in json_objects(path, contents.missing):
        step, layer = whole(line.get("step")), whole(line.get("layer"))
        tokens, topk = whole(line.get("num_tokens")), whole(line.get("topk"), 1)
        rank = whole(line.get("rank", rank_in_name(path)))
        topk = None if topk is None or topk > LARGEST_EXPERT else topk
        if (
            (step is None or step >= MOST_ITERATIONS)
            or (layer is None or layer >= MOST_LAYERS)
            or (rank is None or rank >= MOST_RANKS)
        ):
            raise wrong(path, f"line {number} has no valid step, layer or rank")
        experts: Any = line.get("top_indices")
        try:
            experts = np.array(experts, np.int64)
        except (TypeError, ValueError, OverflowError):
            experts = np.zeros((0, 0, 0), np.int64)
        if experts.size == 0 and tokens == 0:
            experts = np.zeros((0, topk or 1), np.int64)
        shape = (tokens, topk) if tokens else experts.shape
        if experts.ndim != 2 or experts.shape != shape:
            raise wrong(
                path,
                f"line {number} has {tokens} tokens of {topk} experts, and its "
                f"top_indices the shape {list(experts.shape)}",
            )
        if experts.size and not 0 <= experts.min() <= experts.max() < LARGEST_EXPERT:
            raise wrong(path, f"line {number} chooses an expert outside 0 to 65535")
        name = words(line.get("block", "decoder"), 50)
        block = (name, whole(line.get("mtp_idx")) or 0)
        copies = np.bincount(experts.ravel())
        yield rank, Decision(step, block, layer, copies, topk or 0)


def matches(path: Path, beginning: str) -> bool:
    """Return whether a file begins like a router trace, or is that of no expert."""
    if not beginning:
        return bool(EMPTY.fullmatch(path.name))
    return beginning[:1] in ("{", "[") and (
        '"top_indices"' in beginning
        or ('"num_tokens"' in beginning and '"topk"' in beginning)
    )


IMPORTER = Importer(
    name="megatron",
    what="Megatron-Core's router_trace_rank*.jsonl",
    matches=matches,
    read=read,
)
