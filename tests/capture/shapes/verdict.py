"""Compare what a trace says of a shape with what the shape itself logged."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace
from moetraffic.trace.merge.log_folder import log_folder, recording
from moetraffic.trace.merge.merging import merge
from moetraffic.trace.model import Source

ASPECTS = ("layer", "phase", "direction", "micro-batch", "group", "step", "kind")
PATIENCE_S = 30.0
UNNAMED = {"layer": -1, "phase": "", "direction": "", "group": "other"}
LABELS = ("count_exchange", "companion")
"""What inference names beside the phases."""
COUNTS = ("nameable", "unnamed", "inferred", "wrong")


@dataclass(kw_only=True)
class Verdict:
    """Counts over all ranks of a shape in one mode."""

    calls: int = 0  # collectives logged
    absent: int = 0  # logged but not recorded, or recorded but not logged
    bytes_wrong: int = 0  # calls whose operation, group or bytes differ
    routings_wrong: int = 0  # logged, and not recorded with this layer and these counts
    nameable: Counter[str] = field(default_factory=Counter)  # by aspect
    unnamed: Counter[str] = field(default_factory=Counter)
    inferred: Counter[str] = field(default_factory=Counter)  # named, and said to be so
    sourceless: int = 0  # named without a source
    wrong: Counter[str] = field(default_factory=Counter)
    losses_equal: bool = True
    examples: list[str] = field(default_factory=list)  # of what is wrong
    schedule: str = ""
    missing: str = ""

    @property
    def share_unnamed(self) -> dict[str, float]:
        """Of the calls that have a layer, a phase ..."""
        return {a: self.unnamed[a] / max(self.nameable[a], 1) for a in ASPECTS}

    @property
    def faults(self) -> dict[str, int]:
        """What is wrong, and how often; what is unnamed is not."""
        found = {
            "absent": self.absent,
            "bytes": self.bytes_wrong,
            "routings": self.routings_wrong,
            "sourceless": self.sourceless,
            "losses": int(not self.losses_equal),
            **{aspect: self.wrong[aspect] for aspect in ASPECTS},
        }
        return {what: n for what, n in found.items() if n}

    def as_dict(self) -> dict[str, Any]:
        counts = {a: {k: self.__dict__[k][a] for k in COUNTS} for a in ASPECTS}
        return {k: v for k, v in vars(self).items() if k not in COUNTS} | counts

    def note(self, what: str) -> None:
        if len(self.examples) < 8:
            self.examples.append(what)


def opened(folder: Path) -> Trace:
    """The trace of a shape; its logs where no rank has merged them."""
    path = folder / "run.h5"
    if path.exists():
        return Trace.open(path)
    logs = log_folder(path)
    deadline = time.monotonic() + PATIENCE_S
    while recording(logs) and time.monotonic() < deadline:
        time.sleep(0.1)  # of a rank that has gone, as the launcher waits
    return merge(logs).trace


def logged(folder: Path) -> list[dict[str, Any]]:
    """What each rank logged."""
    files = sorted(folder.glob("truth-*.json"))
    return [json.loads(file.read_text()) for file in files]


def judge(folder: Path, bare: Path | None = None) -> Verdict:
    """Judge the trace in ``folder``, whose losses must be those of ``bare``."""
    truths = logged(folder)
    with opened(folder) as trace:
        verdict = Verdict(schedule=trace.meta.schedule, missing=trace.meta.missing)
        for rank, truth in enumerate(truths):
            _judge_rank(verdict, trace, rank, truth)
            if truth["routings"]:
                _judge_routings(verdict, trace, rank, truth["routings"])
        _judge_steps(verdict, trace, truths)
    verdict.losses_equal = bare is None or (
        [t["losses"] for t in truths] == [t["losses"] for t in logged(bare)]
    )
    return verdict


def issued(trace: Trace, rank: int, skipped: list[str]) -> list[int]:
    """A rank's collectives in the order of their issue, whatever their step."""
    sites = trace.occurrences.site
    found: list[tuple[int, int]] = []
    for width in np.unique(trace.width[sites]):
        of = np.flatnonzero(trace.width[sites] == width)
        row, member = np.nonzero((trace.members(of) == rank) & trace.present(of))
        issue, _, _ = trace.times(of, own_clock=True)
        found += zip(issue[row, member].tolist(), of[row].tolist(), strict=True)
    mine = [occurrence for _, occurrence in sorted(found)]
    left_out = (ROUTING, *skipped)
    return [o for o in mine if trace.sites[sites[o]].operation not in left_out]


def _judge_rank(
    verdict: Verdict, trace: Trace, rank: int, truth: dict[str, Any]
) -> None:
    found = issued(trace, rank, truth["lifted"])
    calls = [c for c in truth["calls"] if c["operation"] not in truth["lifted"]]
    truth["found"], truth["calls"] = found, calls
    verdict.calls += len(calls)
    verdict.absent += abs(len(found) - len(calls))
    layers = _layers(trace, found, calls) if truth["renumbered"] else {}
    kinds = [*truth["kinds"], ""]
    first: dict[tuple[int, int, str], int] = {}  # slot of several kinds in one step
    for number, (occurrence, call) in enumerate(zip(found, calls, strict=False)):
        site = trace.sites[trace.occurrences.site[occurrence]]
        group = trace.groups[site.group]
        at = f"rank {rank} call {number} ({call['operation']} {call['place']})"
        if not _bytes_agree(trace, occurrence, rank, call):
            verdict.bytes_wrong += 1
            verdict.note(f"{at}: {site.operation} of {group}, other bytes")
            continue
        everyone = group.kind == "world" and len(group.ranks) == trace.meta.world
        named = site.label if site.label in LABELS else ""
        place = call["place"]
        layer = (site.layer, site.module, place["layer"] // 100)
        true = {
            "layer": place["layer"],
            "phase": place["phase"] or place["label"] * (place["label"] in LABELS),
            "direction": call["direction"],
            "group": "world" if everyone else call["kind"],
        }
        said = {
            "layer": layers.get(layer, site.layer),
            "phase": site.phase or named,
            "direction": site.direction,
            "group": group.kind,
        }
        source = {
            "layer": site.source,
            "phase": site.source,
        }
        if site.phase or (named == "count_exchange" and site.layer >= 0):
            true["micro-batch"], said["micro-batch"] = place["micro_batch"], site.slot
            step = call["step"]
            if "" in kinds[max(step - 1, 0) : step + 1]:
                shift = site.slot - place["micro_batch"]
                begun = first.setdefault((step, place["layer"], site.phase), shift)
                true["micro-batch"] += begun
        expert = bool(true["phase"])
        for aspect, value in said.items():
            if aspect == "direction" and not true["direction"]:
                continue  # outside of the model's passes there is none
            nameable = expert or aspect in ("direction", "group")
            verdict.nameable[aspect] += nameable
            if value == UNNAMED.get(aspect):
                verdict.unnamed[aspect] += nameable
                continue
            of = source.get(aspect, Source.ANNOTATED)
            verdict.inferred[aspect] += nameable and of == Source.INFERRED
            verdict.sourceless += of == Source.UNKNOWN
            if value != true[aspect]:
                verdict.wrong[aspect] += 1
                verdict.note(f"{at}: {aspect} {value!r}, not {true[aspect]!r}")


def _layers(
    trace: Trace, found: list[int], calls: list[dict[str, Any]]
) -> dict[tuple[int, str, int], int]:
    """Return the layer that a layer and module are in each of several models.

    Layers from 100 on are those of a second model.  It is -2 where another layer of the
    trace is that layer more often.
    """
    pairs = Counter[tuple[tuple[int, str, int], int]]()
    for occurrence, call in zip(found, calls, strict=False):
        site = trace.sites[trace.occurrences.site[occurrence]]
        true = call["place"]["layer"]
        if site.layer >= 0:
            pairs[(site.layer, site.module, true // 100), true] += 1
    layers = {said: -2 for said, _ in pairs}
    for (said, true), _ in pairs.most_common():
        if layers[said] == -2 and true not in layers.values():
            layers[said] = true
    return layers


def _judge_routings(
    verdict: Verdict, trace: Trace, rank: int, routings: list[list[Any]]
) -> None:
    sites = trace.occurrences.site
    found = []
    for occurrence in trace.find(operation=ROUTING, kind=None):
        site = trace.sites[sites[occurrence]]
        if rank not in trace.groups[site.group].ranks:
            continue
        member = trace.groups[site.group].ranks.index(rank)
        of = np.array([occurrence])
        issue, _, _ = trace.times(of, own_clock=True)
        counts = trace.demand(of)[0, member].tolist()
        found.append((int(issue[0, member]), [site.layer, counts]))
    said = [routing for _, routing in sorted(found)]
    same = sum(a == b for a, b in zip(said, routings, strict=False))
    unnamed = sum(
        a != b and a[0] < 0 and a[1] == b[1]
        for a, b in zip(said, routings, strict=False)
    )
    verdict.unnamed["routing"] += unnamed
    verdict.nameable["routing"] += len(routings)
    differing = max(len(said), len(routings)) - same - unnamed
    verdict.routings_wrong += differing
    if differing:
        verdict.note(f"rank {rank}: {differing} routings differ, the first: {said[:1]}")


def _bytes_agree(
    trace: Trace, occurrence: int, rank: int, call: dict[str, Any]
) -> bool:
    site = trace.sites[trace.occurrences.site[occurrence]]
    ranks = trace.groups[site.group].ranks
    if site.operation != call["operation"]:
        return False
    of = np.array([occurrence])
    if site.operation == ALL_TO_ALL:
        if list(ranks) != call["ranks"]:
            return False
        member = ranks.index(rank)
        (wire,) = trace.wire(of)
        sent, received = wire[member].tolist(), wire[:, member].tolist()
        return bool(sent == call["sent"] and received == call["received"])
    (volume,) = trace.volume(of)
    if site.operation == "send_recv":
        return bool(volume.max() == call["sent"][0])
    return list(ranks) == call["ranks"] and volume[ranks.index(rank)] == call["sent"][0]


def _judge_steps(verdict: Verdict, trace: Trace, truths: list[dict[str, Any]]) -> None:
    """Judge the iteration of each call, and the kind of that iteration.

    The n-th training or skipped step is the n-th of the trace, evaluations not
    counted.  An evaluation is a step of its own, or is marked in one beside it.  Where
    optimizers alone mark steps, a skipped one that calls none is a part of the next.
    """
    numbers, steps = trace.steps.iteration.tolist(), trace.steps
    kind_of = dict(zip(numbers, steps.kind, strict=True))
    training = [n for n in numbers if kind_of[n] != "evaluation"]
    known = dict(zip(numbers, (steps.source > Source.UNKNOWN).tolist(), strict=True))
    kinds = [*truths[0]["kinds"], ""]  # calls after the last step are of none
    ended = [kind in ("train", "skipped") for kind in kinds]
    for n, optimized in reversed([*enumerate(truths[0]["optimized"])]):
        if kinds[n] == "skipped" and not (optimized or truths[0]["marked"]):
            kinds[n], ended[n] = kinds[n + 1], False
    before = np.cumsum([0, *ended])
    for rank, truth in enumerate(truths):
        for number, (occurrence, call) in enumerate(
            zip(truth["found"], truth["calls"], strict=False)
        ):
            verdict.nameable["step"] += 1
            verdict.nameable["kind"] += 1
            said = int(trace.occurrences.iteration[occurrence])
            if not known.get(said):
                verdict.unnamed["step"] += 1
                verdict.unnamed["kind"] += 1
                continue
            kind, n = kinds[call["step"]], before[call["step"]]
            inside = kind in ("train", "skipped")
            beside = training[n : n + 1] if inside else training[max(n - 1, 0) : n + 1]
            right = said in beside
            if not inside or (call["aside"] and kind_of[said] == "evaluation"):
                first = training[n - 1] if 0 < n <= len(training) else -1
                last = training[n + inside : n + inside + 1] or [max(numbers) + 1]
                right |= first < said < last[0]
            named = kind_of[said]
            allowed = {kind, "evaluation"} if call["aside"] else {kind}
            where = f"rank {rank} call {number} ({call['place']})"
            if not right:
                verdict.wrong["step"] += 1
                verdict.note(f"{where}: iteration {said}, not {beside} ({kind} {n})")
            if kind and named not in allowed:
                verdict.wrong["kind"] += 1
                verdict.note(f"{where}: {named}, not {kind}, in iteration {said}")
