"""Remove texts from a trace that name hosts, users, paths, commands or programs.

Only texts of a fixed vocabulary are kept (operations, phases, element types, kinds of
groups, labels and names that moetraffic itself writes).  All others are removed, or
replaced by a number where equal texts must stay equal.  Numbers are not changed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from moetraffic.patterns import PRESETS, Workload
from moetraffic.patterns.layout import Layout
from moetraffic.trace import DIRECTIONS, PHASES, Trace
from moetraffic.trace.model import OPERATIONS, Meta, Site
from moetraffic.workload.model import (
    ACTIVATIONS,
    NORM_PLACES,
    NORMS,
    POSITIONS,
    ModelShape,
)
from moetraffic.workload.routing import BALANCE_SCOPES, DISPATCH_FORMS, ROUTERS, Gating
from moetraffic.workload.training import DEVICES, PATTERNS, SITES, Dropping, Training

PARTS = (Workload, ModelShape, Gating, Layout, Training, Dropping)
KINDS = frozenset(
    {
        *("ep", "edp", "etp", "dp", "tp", "pp", "cp", "sp", "world", "other"),
        *("dp_shard", "dp_replicate", "dp_cp", "tp_cp", "embedding", "ends"),
    }
)
"""Kinds of process groups."""

LABELS = frozenset(
    {
        *("count_exchange", "companion"),
        *("gradient_sync", "expert_gradient_sync", "embedding_sync", "gradient_norm"),
        *("tensor_parallel", "zero", "context", "pipeline", "pipeline_setup", "loss"),
        *("experts", "balance_counts", "router_load", "router", "bypass"),
    }
)
"""Labels that moetraffic sets itself."""

DTYPES = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "bool", "complex64"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
        *("complex128", "int64", "int32", "int16", "int8"),
        *("uint8", "uint16", "uint32", "uint64"),
    }
)
BACKENDS = frozenset({"gloo", "nccl", "mpi", "ucc", "fake", "xccl", "hccl", "rccl"})
ORIGINS = frozenset({"captured", "imported", "generated", "replayed"})
FIELDS = frozenset(
    {
        *(f.name for kind in PARTS for f in fields(kind)),
        *(o.name for router in ROUTERS.values() for o in router.options),
        "ffn_multiple",  # of earlier releases
    }
)
"""Fields of a workload."""

WORKLOAD_TEXTS = frozenset(
    {
        *(PRESETS.keys() | ROUTERS.keys() | DTYPES),
        *(DISPATCH_FORMS + BALANCE_SCOPES + DEVICES + PATTERNS + SITES),
        *(POSITIONS + NORMS + NORM_PLACES + ACTIVATIONS),
        *(c for r in ROUTERS.values() for o in r.options for c in o.choices),
    }
)
"""Values of a workload's text fields."""

AXES = re.compile(r"(?:tp|cp|ep|dp|pp|edp)(?:-(?:tp|cp|ep|dp|pp|edp))*")
RELEASE = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,2}")
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|\+00:00)?")
INFERRED = "some values were inferred (details removed)"
MISSING = "something is missing (details removed)"
CONTRADICTION = "rows that were sent contradict the routing (details removed)"


@dataclass(frozen=True, kw_only=True)
class Anonymized:
    """Trace without identifying texts, with what was removed and what remains."""

    trace: Trace
    removed: tuple[str, ...]  # a phrase each: "2 node names, now node0 to node1"
    texts: tuple[str, ...]  # all texts that remain, sorted


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
        The new trace, which reads its panels from the same file, and reports of what
        was removed and what remains.
    """
    trace = Trace.open(trace)
    removed = Counter[str]()
    meta = _anonymous_meta(trace.meta, removed)
    nodes = _Numbered("names of nodes", "node", {""})
    kinds = _Numbered("kinds of groups", "group", KINDS)
    of_sites = {  # by field of a call site
        "label": _Numbered("labels of calls", "label", LABELS | {""}),
        "module": _Numbered("names of modules", "module", {""}),
        "dtype": _Numbered("element types", "dtype", DTYPES | {""}),
        "operation": _Numbered("operations", "operation", {*OPERATIONS}),
        "phase": _Numbered("phases", "phase", {*PHASES, ""}),
        "direction": _Numbered("directions", "direction", {*DIRECTIONS, ""}),
    }

    def renamed(site: Site) -> Site:
        new: dict[str, Any] = {n: of(getattr(site, n)) for n, of in of_sites.items()}
        return replace(site, **new)

    anonymous = trace.replaced(
        meta=replace(meta, nodes=tuple(map(nodes, trace.meta.nodes))),
        groups=[replace(g, kind=kinds(g.kind)) for g in trace.groups],
        sites=[renamed(s) for s in trace.sites],
    )
    every = (nodes, *of_sites.values(), kinds)
    return Anonymized(
        trace=anonymous,
        removed=(*removed, *(one.report() for one in every if one)),
        texts=tuple(sorted(set(_texts(anonymous)) - {""})),
    )


class _Numbered:
    """Replacement of texts outside a vocabulary by a prefix and a number."""

    def __init__(self, what: str, prefix: str, kept: Set[str]) -> None:
        self._what, self._prefix, self._kept = what, prefix, kept
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        if text in self._kept:
            return text
        return f"{self._prefix}{self._numbers.setdefault(text, len(self._numbers))}"

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def report(self) -> str:
        """Describe how many texts were replaced, and by what."""
        last = len(self._numbers) - 1
        until = f" to {self._prefix}{last}" if last else ""
        return f"{self._what}: {last + 1}, now {self._prefix}0{until}"


def _anonymous_meta(meta: Meta, removed: Counter[str]) -> Meta:
    """Remove or replace the texts of the metadata; note what was removed."""
    model = meta.model.removesuffix(", scaled")
    backends = re.split(r"[:,]", meta.backend)
    known_backend = set(backends) <= BACKENDS | {"cpu", "cuda"}
    texts = [f.name for f in fields(Meta) if f.type == "str"]
    kept: dict[str, Any] = dict.fromkeys(texts, "") | {
        "origin": meta.origin if meta.origin in ORIGINS else "captured",
        "model": meta.model if model in PRESETS else "",
        "router": meta.router if meta.router in ROUTERS else "",
        "dispatch": meta.dispatch if meta.dispatch in DISPATCH_FORMS else "",
        "order": meta.order if AXES.fullmatch(meta.order) else Meta().order,
        "dtype": meta.dtype if meta.dtype in DTYPES else "",
        "backend": meta.backend if known_backend else "",
        "schedule": INFERRED if meta.schedule else "",
        "inferred": INFERRED if meta.inferred else "",
        "missing": MISSING if meta.missing else "",
        "contradiction": CONTRADICTION if meta.contradiction else "",
        "moetraffic": _release(meta.moetraffic),
        "torch": _release(meta.torch),
        "python": _release(meta.python),
        "workload": _anonymous_workload(meta.workload),
        "created": meta.created if TIMESTAMP.fullmatch(meta.created) else "",
    }
    words = {
        "schedule": "remarks about inference",
        "inferred": "remarks about values that an import inferred",
        "missing": "remarks about missing records",
        "contradiction": "remarks about rows that contradict the routing",
        "workload": "free text of the workload",
        "source": "name of the source",
        "created": "time of creation",
        **{name: f"build in the version of {name}" for name in ("moetraffic", "torch")},
        "python": "build in the version of python",
    }
    for name, value in kept.items():
        if value != getattr(meta, name):
            removed[words.get(name, f"{name} name")] += 1
    return replace(meta, **kept)


def _release(version: str) -> str:
    """Return the release number of a version, without its build: 2.4.0 of 2.4.0+x."""
    found = RELEASE.match(version)
    return found[0] if found else ""


def _anonymous_workload(text: str) -> str:
    """Keep the numbers and known texts of a workload's fields; "" if it is none."""
    try:
        found = json.loads(text)
        return json.dumps(_known(found), sort_keys=True) if found else ""
    except (ValueError, RecursionError):
        return ""  # written by another program: its texts are unknown


def _known(value: Any) -> Any:
    """Copy a JSON value without unknown fields, and with unknown texts empty."""
    if isinstance(value, dict):
        return {k: _known(v) for k, v in value.items() if k in FIELDS}
    if isinstance(value, list):
        return [_known(v) for v in value]
    if isinstance(value, str) and value not in WORKLOAD_TEXTS:
        return value if AXES.fullmatch(value) else ""
    return value


def _texts(trace: Trace) -> Iterable[str]:
    """Iterate over all texts of a trace."""
    for value in trace.meta.as_dict().values():
        if isinstance(value, str):
            yield value
    yield from trace.meta.nodes
    yield from (g.kind for g in trace.groups)
    for site in trace.sites:
        yield from (site.operation, site.phase, site.direction, site.dtype, site.label)
        yield site.module
    yield from trace.steps.kind
