"""Import Megatron-Core's router traces, ``router_trace_rank{r}.jsonl``.

``{"step", "stage", "block", "layer", "rank", "num_tokens", "topk", "top_indices"}``,
and ``mtp_idx`` for layers that predict further tokens (``megatron/core/transformer/
moe/router_trace.py``).  ``top_indices`` is ``[num_tokens, topk]``: the experts of each
token before any is dropped.  A layer occurs once per micro-batch in a step.  The files
contain neither the number of experts nor their placement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace.model import ROUTING, UNKNOWN_TIME, Group

from .imported_call import ImportedCall, ImportedRank
from .importer import (
    ImportedFiles,
    Importer,
    ImportOptions,
    json_with,
    rank_in_name,
)
from .json_reader import (
    MOST_ITERATIONS,
    MOST_LAYERS,
    MOST_RANKS,
    json_lines,
    whole,
    words,
    wrong,
)

LARGEST_EXPERT = 1 << 16
ONE_STAGE = "layers as numbered in the files, which number those of a stage (--pp)"
STAGES = "layers of a pipeline stage counted after the highest one of earlier stages"


@dataclass(kw_only=True)
class Decisions:
    """Routing decisions of one rank, from one file."""

    rank: int
    source: str
    # step, block and number of its kind, layer, token copies by expert up to the last
    made: list[tuple[int, tuple[str, int], int, Any]] = field(default_factory=list)
    topk: set[int] = field(default_factory=set)


def read(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    """Read the router traces of all ranks as routing calls.

    Experts lie on ``options.ep`` ranks in equal parts; without it, the placement is
    unknown.
    """
    cut: list[str] = []
    every = [_decisions(file, rank_in_name(file), cut) for file in files]
    if len({d.rank for d in every}) < len(every):
        raise TraceError(
            "a rank has one router trace, but two of these files are of one rank: "
            "import one run at a time"
        )
    seen = max((len(c) for d in every for *_, c in d.made), default=0)
    experts = options.experts or seen
    if not experts:
        raise TraceError(
            "the files hold no routed token, so that the number of experts is "
            "unknown: give --experts"
        )
    if experts < seen:
        raise TraceError(
            f"the files choose expert {seen - 1}, but --experts is {experts}: raise it"
        )
    remark = f"the number of experts is not in the files, {seen} were chosen from"
    world = max(options.ranks, max(d.rank for d in every) + 1)
    if world % options.pp:
        raise TraceError(
            f"pipeline stages have equally many ranks, but --pp is {options.pp}, with "
            f"{world} ranks: change --pp or --ranks"
        )
    stage_ranks = world // options.pp
    ep = options.ep or stage_ranks
    if stage_ranks % ep or (options.ep and experts % ep):
        raise TraceError(
            f"experts lie on ep ranks in equal parts, but ep is {ep}, with "
            f"{stage_ranks} ranks and {experts} experts: change --ep, --experts or "
            "--ranks"
        )
    kind = "ep" if options.ep else "world" if options.pp == 1 else "other"
    groups = [
        Group(kind=kind, ranks=tuple(range(first, first + ep)))
        for first in range(0, world, ep)
    ]
    _number_layers(every, stage_ranks)
    records = _records(every, experts, groups)
    layers = {c.layer for r in records for c in r.calls}
    placed = {
        (layer, g): [g.ranks[e * ep // experts] for e in range(experts)]
        for g in groups
        for layer in layers
    }
    topk = {k for d in every for k in d.topk}
    return ImportedFiles(
        records=records,
        world=world,
        placed=placed if options.ep else None,
        experts=experts,
        k=topk.pop() if len(topk) == 1 else 0,
        remarks=(*cut, *[remark] * (not options.experts)),
        inferred=(STAGES if options.pp > 1 else ONE_STAGE,),
    )


def _number_layers(every: Sequence[Decisions], stage_ranks: int) -> None:
    """Count the layers of a pipeline stage after those of earlier stages.

    A file numbers the layers of its stage from 0 on; stages are consecutive ranks.
    """
    last: dict[int, int] = defaultdict(int)  # by stage
    for decisions in every:
        for _, (block, _), layer, _ in decisions.made:
            if block == "decoder":
                stage = decisions.rank // stage_ranks
                last[stage] = max(last[stage], layer + 1)
    for decisions in every:
        stage = decisions.rank // stage_ranks
        first = sum(count for before, count in last.items() if before < stage)
        decisions.made = [
            (step, block, layer + first * (block[0] == "decoder"), counts)
            for step, block, layer, counts in decisions.made
        ]


def _decisions(path: Path, rank: int | None, cut: list[str]) -> Decisions:
    """Read the routing decisions of one rank from a router trace.

    An empty file is that of a rank without experts, such as of a stage of dense layers.
    """
    found: Decisions | None = None
    for number, line in enumerate(json_lines(path, cut)):
        step, layer = whole(line.get("step")), whole(line.get("layer"))
        tokens, topk = whole(line.get("num_tokens")), whole(line.get("topk"), 1)
        own = whole(line.get("rank", rank))
        if (
            (step is None or step >= MOST_ITERATIONS)
            or (layer is None or layer >= MOST_LAYERS)
            or (own is None or own >= MOST_RANKS)
        ):
            raise wrong(path, f"record {number} has no valid step, layer or rank")
        if found is None:
            found = Decisions(rank=own, source=path.name)
        if own != found.rank:
            raise wrong(path, f"record {number} is of rank {own}, not {found.rank}")
        try:
            experts = np.array(line.get("top_indices"), np.int64)
        except (TypeError, ValueError, OverflowError):
            experts = np.zeros((0, 0, 0), np.int64)
        shape = (tokens, topk) if tokens else experts.shape
        if experts.size == 0 and tokens == 0:
            experts = np.zeros((0, topk or 1), np.int64)
            shape = experts.shape
        if experts.ndim != 2 or experts.shape != shape:
            raise wrong(
                path,
                f"record {number} has {tokens} tokens of {topk} experts, and its "
                f"top_indices the shape {list(experts.shape)}",
            )
        if experts.size and not 0 <= experts.min() <= experts.max() < LARGEST_EXPERT:
            raise wrong(path, f"record {number} chooses an expert outside 0 to 65535")
        block = (
            words(line.get("block", "decoder"), 50),
            whole(line.get("mtp_idx")) or 0,
        )
        counts = np.bincount(experts.ravel()).astype(np.int32)
        found.made.append((step, block, layer, counts))
        found.topk.add(topk or 0)
    if found is None and rank is None:
        raise wrong(path, "it holds no decision", "name it like router_trace_rank3")
    return found or Decisions(rank=rank or 0, source=path.name)


def _records(
    every: list[Decisions], experts: int, groups: list[Group]
) -> list[ImportedRank]:
    """Convert the decisions of all ranks; each rank is in one of the groups.

    Multi-token prediction layers are numbered after the last decoder layer.
    """
    blocks = {(block, layer) for d in every for _, block, layer, _ in d.made}
    plain = [layer for (name, _), layer in blocks if name == "decoder"]
    others = sorted(b for b in blocks if b[0][0] != "decoder")
    after = {b: max(plain, default=-1) + 1 + at for at, b in enumerate(others)}
    unknown = np.full(experts, -1, np.int32)  # dropped copies are not recorded
    found = []
    for decisions in every:
        record = ImportedRank(rank=decisions.rank, source=decisions.source)
        group = next(g for g in groups if decisions.rank in g.ranks)
        for step, block, layer, counts in decisions.made:
            record.calls.append(
                ImportedCall(
                    operation=ROUTING,
                    group=group,
                    layer=after.get((block, layer), layer),
                    label="" if block[0] == "decoder" else f"{block[0]}{block[1]}",
                    iteration=step,
                    sent=np.pad(counts, (0, experts - len(counts))),
                    received=unknown,
                )
            )
        steps = sorted({step for step, *_ in decisions.made})
        record.steps += [(step, UNKNOWN_TIME, UNKNOWN_TIME) for step in steps]
        found.append(record)
    return found


IMPORTER = Importer(
    name="megatron",
    what="Megatron-Core's router_trace_rank*.jsonl",
    matches=json_with(['"top_indices"'], ['"num_tokens"', '"topk"']),
    read=read,
)
