"""Options of a workload, the same on every verb that trains one.

A verb takes them with ``takes(chosen=WORKLOAD)``, for :func:`describe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import Parameter
from math import prod
from typing import Any

from moetraffic.errors import LayoutError
from moetraffic.patterns import (
    ROUTERS,
    Gating,
    Layout,
    ModelShape,
    Training,
    Workload,
    preset,
    scaled,
)
from moetraffic.report.console.options import (
    Setting,
    field_options,
    named_values,
    option,
)
from moetraffic.workload.routing import BALANCE_SCOPES, OptionValue


def _routers() -> str:
    named = ", ".join(f"{s.name} ({s.text})" for s in ROUTERS.values())
    return f"Router: {named}, or one of an installed package."


def _router_options() -> str:
    named = "; ".join(
        f"{s.name}: {', '.join(o.name for o in s.options)}"
        for s in ROUTERS.values()
        if s.options
    )
    return f"Option of the router, as name=value; may be given again. {named}."


MODEL = "model"
"""The option that names a preset; the others change it."""

PROPORTION = "in proportion"
PARTS: Mapping[str, Mapping[str, Parameter]] = {
    "model": field_options(
        ModelShape,
        "Model",
        {
            "layers": "Number of transformer blocks, including an encoder's.",
            "encoder_layers": Setting("Number of encoder blocks.", shown=PROPORTION),
            "hidden": "Width of the model.",
            "heads": "Number of attention heads.",
            "kv_heads": Setting("Number of key and value heads.", shown=PROPORTION),
            "head_size": Setting("Width of an attention head.", shown=PROPORTION),
            "sequence": "Number of tokens per sequence.",
            "target_sequence": Setting(
                "Tokens of a decoder's sequence, behind an encoder.", shown="same"
            ),
            "vocabulary": Setting("Vocabulary size.", shown="bytes, if resized"),
            "ffn": Setting("Feed-forward width.", shown="4 x hidden, or scaled"),
            "expert_ffn": Setting(
                "Feed-forward width of an expert.", shown="ffn, or in proportion"
            ),
            "shared_ffn": Setting(
                "Feed-forward width of shared experts.", shown=PROPORTION
            ),
            "moe_every": "Distance between MoE layers: every n-th layer has experts.",
            "moe_first": "First layer that can have experts.",
            "experts": "Number of experts of a MoE layer; 0 for a dense model.",
        },
        optional=True,
    ),
    "gating": field_options(
        Gating,
        "Routing",
        {
            "router": _routers(),
            "k": Setting("Experts per token (top-k).", shown="2, or the router's own"),
            "dispatch": Setting(
                "Dispatch form: dropless, dropped, or padded to capacity.",
                shown="dropless, or the router's own",
            ),
            "capacity_factor": "Expert capacity, relative to a balanced load.",
            "balance": "Weight of the load-balancing loss.",
            "balance_scope": "Tokens over which the load is balanced: "
            f"{', '.join(BALANCE_SCOPES)}.",
            "z_loss": "Weight of the router z-loss.",
            "options": Setting(
                _router_options(), "--router-option", shown="none", kind=list[str]
            ),
        },
        optional=True,
    ),
    "layout": field_options(
        Layout,
        "Layout",
        {
            "dp": Setting(
                "Number of data-parallel replicas.", shown="ranks / (tp pp cp)"
            ),
            "ep": Setting(
                "Number of expert-parallel ranks, a divisor of dp.", shown="dp"
            ),
            "tp": "Number of tensor-parallel ranks of a layer.",
            "pp": "Number of pipeline stages.",
            "order": "Order of the parallel axes over ranks, fastest-varying first.",
            "zero": "ZeRO stage: 0, 1, 2 or 3.",
        },
        optional=True,
    ),
    "training": field_options(
        Training,
        "Training",
        {
            "iterations": "Number of training iterations.",
            "micro_batch": "Number of sequences per rank in one forward pass.",
            "accumulation": Setting("Micro-batches of an iteration.", shown="pp"),
            "learning_rate": "Peak learning rate of AdamW.",
            "warmup": Setting(
                "Iterations over which the learning rate rises.",
                "--learning-rate-warmup",
            ),
            "seed": "Random seed of initialization, data and routing.",
            "data_seed": Setting(
                "Random seed of data order and routing noise: a rerun with the same "
                "initialization.",
                shown="as --seed",
                kind=int,
            ),
            "device": "Device: cpu or cuda.",
            "dtype": "Data type of parameters: float32, float64 or bfloat16.",
            "precision": Setting(
                "Data type of matrix products: bfloat16.", shown="as dtype"
            ),
            "recompute": Setting(
                "Activation recomputation: none or full.",
                shown="none",
                kind=str,
                rule={"choices": ("none", "full")},
            ),
            "corpus": Setting(
                "Text to train on: a file, folder or glob; random: random tokens.",
                shown="Python's standard library",
            ),
        },
        optional=True,
    ),
}
"""Options by part of a workload and field."""

UNLISTED = ("virtual",)
"""Fields of the training that a verb sets itself."""

WORKLOAD: Mapping[str, Parameter] = {
    MODEL: Parameter(
        MODEL,
        Parameter.KEYWORD_ONLY,
        default=option(
            None,
            "Model preset; moetraffic models lists them; other options change it.",
            panel="Model",
            shown="tiny",
        ),
        annotation=str | None,
    ),
    **{name: made for part in PARTS.values() for name, made in part.items()},
}
"""All options of a workload, for ``takes(chosen=WORKLOAD)``."""


def describe(ranks: int, chosen: Mapping[str, Any]) -> Workload:
    """Make the workload of ``ranks`` ranks from the chosen fields and defaults.

    ``chosen`` has values by field name, and a preset's name as "model"; what is absent
    or None was not chosen. ``ranks`` is the product of the parallel degrees, which
    gives dp if it was not chosen. A model of another size than the preset's follows the
    rules of :func:`~moetraffic.patterns.scaled`.

    Raises
    ------
    LayoutError
        If there is no such preset, the ranks are not dp x tp x pp x cp, or the parts
        cannot go together.
    """
    if ranks < 1:
        raise LayoutError(f"at least one rank trains, but nproc is {ranks}: raise it")
    given = {name: value for name, value in chosen.items() if value is not None}
    base = _base(given.pop(MODEL, ""))
    for name, value in _router_defaults(given.get("router", "")).items():
        given.setdefault(name, value)
    if given.get("router", base["gating"].router) != base["gating"].router:
        base["gating"] = replace(base["gating"], options={})  # are the other router's
    if "options" in given:
        given["options"] = parse_options(given["options"])
    if given.get("pp", 1) > 1:
        given.setdefault("accumulation", given["pp"])
    parts = {
        part: {name: given[name] for name in options if name in given}
        for part, options in PARTS.items()
    }
    parts["training"] |= {n: given[n] for n in UNLISTED if n in given}
    if "recompute" in given:
        parts["training"]["recompute"] = given["recompute"] == "full"
    model: ModelShape = scaled(base.pop("model"), parts.pop("model"))
    parts["layout"] = _whole(ranks, parts["layout"])
    if not model.experts:
        parts["layout"]["ep"] = given.get("ep", 1)
    made = {part: replace(base[part], **new) for part, new in parts.items()}
    return Workload(model=model, **made)


def _base(model: str) -> dict[str, Any]:
    """Return the parts of a workload that options change: the default or a preset."""
    default = Workload()
    if not model:
        return {part: getattr(default, part) for part in PARTS}
    found = preset(model)
    return {
        "model": found.model,
        "gating": found.gating,
        "layout": Layout(),
        "training": replace(default.training, micro_batch=found.micro_batch),
    }


def _router_defaults(router: str) -> dict[str, Any]:
    """Return the fields for which a router has another default or a single value."""
    spec = ROUTERS.get(router)
    if spec is None:
        return {}
    own: dict[str, Any] = {"k": spec.k, "capacity_factor": spec.capacity_factor}
    if Workload().gating.dispatch not in spec.dispatch:
        own["dispatch"] = spec.dispatch[0]
    return {name: value for name, value in own.items() if value is not None}


def parse_options(texts: Sequence[str]) -> dict[str, OptionValue]:
    """Read ``["groups=4", "score=softmax"]`` as a mapping with typed values.

    ``true`` and ``false`` are truth values; what reads as a number is one. LayoutError:
    a text is not ``name=value``, or a name comes twice.
    """
    told = named_values(texts, "a router option", "--router-option seed=1")
    return {name: _value(value) for name, value in told.items()}


def _value(text: str) -> OptionValue:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _whole(ranks: int, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the layout: dp from the number of ranks, and ep equal to dp."""
    sizes = {axis: layout.get(axis, 1) for axis in ("dp", "tp", "pp", "cp")}
    if min(sizes.values()) < 1:
        return dict(layout)  # refused by Layout, which says which one
    if "dp" not in layout:
        sizes["dp"] = max(1, ranks // (sizes["tp"] * sizes["pp"] * sizes["cp"]))
    if prod(sizes.values()) != ranks:
        raise LayoutError(
            "the ranks must be dp x tp x pp x cp, but there are "
            f"{ranks} for {' x '.join(map(str, sizes.values()))}: change the number of "
            "ranks, --dp, --tp or --pp"
        )
    return {"ep": sizes["dp"], **layout, "dp": sizes["dp"]}
