"""Remove texts from a trace that name hosts, users, paths, commands or programs.

Only texts of a fixed vocabulary are kept (operations, phases, element types, kinds of
groups, labels and names that moetraffic itself writes).  All others are removed, or
replaced by a number where equal texts must stay equal.  Numbers are not changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from moetraffic.errors import MoetrafficError
from moetraffic.patterns import PRESETS, Workload
from moetraffic.trace import DIRECTIONS, PHASES, Trace
from moetraffic.trace.model import OPERATIONS, Meta, Site
from moetraffic.workload.routing import DISPATCH_FORMS, ROUTERS


def _texts(words: str) -> frozenset[str]:
    return frozenset(words.split())


KINDS = _texts(
    "ep edp etp dp tp pp cp sp world other unknown load dp_shard dp_replicate dp_cp "
    "tp_cp embedding ends"
)
LABELS = _texts(
    "count_exchange companion gradient_sync "
    "expert_gradient_sync embedding_sync gradient_norm tensor_parallel zero context "
    "pipeline pipeline_setup loss experts balance_counts router_load router bypass"
)
"""Labels that moetraffic sets itself."""

DTYPES = _texts(
    "float64 float32 float16 bfloat16 bool complex64 complex128 float8_e4m3fn "
    "float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz int64 int32 int16 int8 uint8 uint16 "
    "uint32 uint64"
)
BACKENDS = _texts("gloo nccl mpi ucc fake xccl hccl rccl cpu cuda")
ORIGINS = frozenset({"captured", "imported", "generated", "replayed"})
AXES = re.compile(r"(?:tp|cp|ep|dp|pp|edp)(?:-(?:tp|cp|ep|dp|pp|edp))*")
RELEASE = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,2}")  # 2.4.0 of 2.4.0+build
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|\+00:00)?")
REMARKS = {
    "schedule": "some values were inferred (details removed)",
    "inferred": "some values were inferred (details removed)",
    "missing": "something is missing (details removed)",
    "contradiction": "rows that were sent contradict the routing (details removed)",
}


@dataclass(frozen=True, kw_only=True)
class Anonymized:
    """Trace without identifying texts, and what was removed."""

    trace: Trace
    removed: tuple[str, ...]  # a phrase each: "nodes: 2, now node0 to node1"


def anonymize(trace: Trace | str | Path) -> Anonymized:
    """Remove host names, commands, paths, user names and free text from a trace.

    Nodes become ``node0``, ``node1`` ..., modules ``module0`` ..., and unknown labels
    ``label0`` ... in the order of their first use; equal names stay equal.  Remarks
    about missing records, inference and contradictions are replaced by a fixed
    sentence.  Every number is kept.

    Parameters
    ----------
    trace
        Any trace; it is not changed.

    Returns
    -------
    Anonymized
        The new trace, which reads its panels from the same file, and what was removed.
    """
    trace = Trace.open(trace)
    meta = _anonymous(trace.meta)
    changed = [
        f.name
        for f in fields(Meta)
        if repr(getattr(meta, f.name)) != repr(getattr(trace.meta, f.name))
    ]
    nodes = _Numbered("node", {""})
    kinds = _Numbered("group", KINDS)
    of_sites = {  # by field of a call site
        "label": _Numbered("label", LABELS | {""}),
        "module": _Numbered("module", {""}),
        "dtype": _Numbered("dtype", DTYPES | {""}),
        "operation": _Numbered("operation", {*OPERATIONS}),
        "phase": _Numbered("phase", {*PHASES, ""}),
        "direction": _Numbered("direction", {*DIRECTIONS, ""}),
    }

    def renamed(site: Site) -> Site:
        new: dict[str, Any] = {n: of(getattr(site, n)) for n, of in of_sites.items()}
        return replace(site, **new)

    anonymous = trace.replaced(
        meta=replace(meta, nodes=tuple(map(nodes, trace.meta.nodes))),
        groups=[replace(group, kind=kinds(group.kind)) for group in trace.groups],
        sites=list(map(renamed, trace.sites)),
    )
    numbered = (nodes, *of_sites.values(), kinds)
    reports = [of.report() for of in numbered if of.numbers]
    return Anonymized(trace=anonymous, removed=(*changed, *reports))


class _Numbered:
    """Replacement of texts outside a vocabulary by a prefix and a number."""

    def __init__(self, prefix: str, kept: Set[str]) -> None:
        self._prefix, self._kept = prefix, kept
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        if text in self._kept:
            return text
        return f"{self._prefix}{self.numbers.setdefault(text, len(self.numbers))}"

    def report(self) -> str:
        """Describe how many texts were replaced, and by what."""
        last = len(self.numbers) - 1
        until = f" to {self._prefix}{last}" if last else ""
        return f"{self._prefix} names: {last + 1}, now {self._prefix}0{until}"


def _anonymous(meta: Meta) -> Meta:
    """Remove or replace the texts of the metadata."""

    def release(text: str) -> bool | str:
        match = RELEASE.match(text)
        return match[0] if match else False

    kept: Mapping[str, Callable[[str], Any]] = {
        "origin": lambda text: text if text in ORIGINS else "captured",
        "model": lambda text: text.removesuffix(", scaled") in PRESETS,
        "router": ROUTERS.__contains__,
        "dispatch": DISPATCH_FORMS.__contains__,
        "order": lambda text: text if AXES.fullmatch(text) else Meta().order,
        "dtype": DTYPES.__contains__,
        "backend": lambda text: BACKENDS.issuperset(re.split(r"[:,]", text)),
        "created": TIMESTAMP.fullmatch,
        "workload": _workload,
        **dict.fromkeys(("moetraffic", "torch", "python"), release),
    }
    new: dict[str, str] = {}
    for name in (f.name for f in fields(Meta) if f.type == "str"):
        text = getattr(meta, name)
        keep = kept[name](text) if name in kept else ""
        if name in REMARKS:
            keep = REMARKS[name] if text else ""
        new[name] = keep if isinstance(keep, str) else text if keep else ""
    return replace(meta, **new)  # type: ignore[arg-type]


def _workload(text: str) -> str:
    """Remove the free texts of a workload; "" if it is none."""
    try:
        Workload.from_json(text)  # which checks all other fields
        parts = json.loads(text)
    except (MoetrafficError, ValueError, TypeError, AttributeError, RecursionError):
        return ""  # written by another program: its texts are unknown
    if "corpus" in parts.get("training", {}):
        parts["training"]["corpus"] = ""
    model = parts.get("model", {})
    if model.get("name") not in PRESETS:
        model.pop("name", None)
    return json.dumps(parts, sort_keys=True)
