"""Options that describe a model: a preset or a configuration file, and its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import typer

from moetraffic.errors import LayoutError
from moetraffic.patterns import Gating, ModelShape, preset, scaled
from moetraffic.patterns.presets import read_config
from moetraffic.patterns.shape import broken_rules
from moetraffic.report.console.options import Setting, field_options

_FOLLOWS = "the model's, or in proportion"

SHAPE = {
    **field_options(
        ModelShape,
        "Model",
        {
            "layers": Setting("Number of transformer layers.", shown="the model's"),
            "hidden": Setting("Hidden size.", shown="the model's"),
            "heads": Setting("Number of attention heads.", shown="the model's"),
            "kv_heads": Setting("Number of key and value heads.", shown=_FOLLOWS),
            "head_size": Setting("Width of an attention head.", shown=_FOLLOWS),
            "ffn": Setting("Feed-forward width.", shown=_FOLLOWS),
            "experts": Setting(
                "Number of experts of a MoE layer; 0 for a dense model.",
                shown="the model's",
            ),
            "expert_ffn": Setting("Feed-forward width of an expert.", shown=_FOLLOWS),
            "shared_ffn": Setting(
                "Feed-forward width of shared experts.", shown=_FOLLOWS
            ),
            "moe_every": Setting(
                "Distance between MoE layers: every n-th layer has experts.",
                shown="the model's",
            ),
            "vocabulary": Setting("Vocabulary size.", "--vocab", shown="the model's"),
            "sequence": Setting("Number of tokens per sequence.", shown="the model's"),
            "mtp": Setting(
                "Number of modules that predict further tokens (MTP).",
                shown="the model's",
            ),
            "tied": Setting(
                "Whether the output layer shares the embedding's weights.",
                shown="the model's",
            ),
        },
        optional=True,
    ),
    **field_options(
        Gating,
        "Model",
        {"k": Setting("Experts per token (top-k).", shown="the model's")},
        optional=True,
    ),
}
"""For ``takes(shape=SHAPE)``."""

SHAPE_OPTIONS = tuple(option.name for option in SHAPE.values())
"""Parameters of a verb that takes them."""

MODEL = "gpt-1.3b"
"""The model of all verbs where none is named."""

MODEL_HELP = (
    "Model preset (moetraffic models lists them), or the config.json of a HuggingFace "
    "model; the sizes below change it."
)


def model_of(model: str, chosen: Mapping[str, Any]) -> tuple[ModelShape, Gating, int]:
    """Return the shape, routing and micro-batch that these options describe.

    Parameters
    ----------
    model
        Name of a preset, or a configuration file.
    chosen
        Values of :data:`SHAPE` by field; None: not given.

    Raises
    ------
    LayoutError
        If there is no such model, or its sizes cannot go together.
    """
    if model.endswith(".json") or "/" in model:
        read = read_config(model)
        shape, gating, batch = read.shape, Gating(), 1
        if read.k:
            gating = replace(gating, k=read.k, dispatch="dropless")
    else:
        found = preset(model)
        shape, gating, batch = found.model, found.gating, found.micro_batch
    given = {name: value for name, value in chosen.items() if value is not None}
    k = given.pop("k", None)
    made = scaled(shape, given)
    # capture reads bytes when a model is resized; a calculation needs no text
    made = replace(made, vocabulary=given.get("vocabulary", shape.vocabulary))
    if k is not None and made.experts:
        gating = replace(gating, k=k)
    for rule, remedy in broken_rules(made):
        raise LayoutError(f"{rule}: {remedy.replace('--vocabulary', '--vocab')}")
    if made.experts and not 1 <= gating.k <= made.experts:
        raise LayoutError(
            f"a token selects 1 to {made.experts} experts, but k is {gating.k}: change "
            "--k"
        )
    return made, gating, batch


def based_on(
    ctx: typer.Context, shape: ModelShape, gating: Gating, chosen: Mapping[str, Any]
) -> str:
    """Name a model, whether it is the default, and what it keeps if it was resized."""
    given = ctx.get_parameter_source("model")
    default = given is not None and given.name == "DEFAULT"
    words = shape.name.replace(MODEL, f"{MODEL} (default)", 1 if default else 0)
    name = shape.name.removesuffix(", scaled")
    sizes = {
        "vocabulary": shape.vocabulary,
        **({"k": gating.k} if shape.experts else {}),
    }
    kept = [f"{f} {n:,}" for f, n in sizes.items() if chosen.get(f) is None]
    if name == shape.name or not kept:
        return words
    return f"{words} (kept: {', '.join(kept)})"
