"""The options that describe a workload, the same on every verb that trains one.

A verb takes them with :func:`takes_workload`; each option names the field of
:class:`~moetraffic.patterns.Workload` that it sets, so a field that is added there is
one line here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any

import typer

from moetraffic.errors import LayoutError
from moetraffic.patterns import (
    ROUTERS,
    ModelShape,
    ParallelLayout,
    Workload,
    preset,
    scaled,
)
from moetraffic.patterns.router_spec import OptionValue
from moetraffic.patterns.routers import BALANCE_SCOPES


@dataclass(frozen=True)
class Setting:
    """An option and the field that it sets."""

    part: str  # attribute of Workload: model, gating, layout or training
    field: str
    kind: type
    text: str
    default: str = ""  # in words, where the field's own default does not say it
    flag: str = ""  # the option, where it is not named as the field


def _routers() -> str:
    named = ", ".join(f"{s.name} ({s.text})" for s in ROUTERS.values())
    return f"One of {named}, or an installed package's."


def _router_options() -> str:
    named = "; ".join(
        f"{s.name}: {', '.join(o.name for o in s.options)}"
        for s in ROUTERS.values()
        if s.options
    )
    return f"name=value of the router's own, any number of times.  {named}."


MODEL = "model"
"""The option that names a preset; the others change it."""

SETTINGS = (
    Setting("model", "layers", int, "Transformer blocks, an encoder's included."),
    Setting("model", "encoder_layers", int, "Of these the encoder's.", "in proportion"),
    Setting("model", "hidden", int, "Model width."),
    Setting("model", "heads", int, "Attention heads."),
    Setting("model", "kv_heads", int, "Key and value heads.", "in proportion"),
    Setting("model", "head_size", int, "Width of a head.", "in proportion"),
    Setting("model", "sequence", int, "Tokens of a sequence."),
    Setting("model", "target_sequence", int, "A decoder's, behind an encoder.", "same"),
    Setting("model", "vocabulary", int, "Tokens there are.", "bytes, if resized"),
    Setting("model", "ffn", int, "Feed-forward width.", "4 hidden, or in proportion"),
    Setting("model", "expert_ffn", int, "Width of an expert.", "ffn, or in proportion"),
    Setting("model", "shared_ffn", int, "Width of shared experts.", "in proportion"),
    Setting("model", "moe_every", int, "Every n-th layer carries experts."),
    Setting("model", "moe_first", int, "No layer before this one does."),
    Setting("model", "experts", int, "Experts of a MoE layer; 0: a dense model."),
    Setting("gating", "router", str, _routers()),
    Setting("gating", "k", int, "Experts of a token.", "2, or the router's own"),
    Setting(
        "gating",
        "dispatch",
        str,
        "dropless, dropped, or padded to capacity.",
        "dropless, or the router's own",
    ),
    Setting("gating", "capacity_factor", float, "Capacity over a balanced load."),
    Setting("gating", "balance", float, "Weight of the load-balancing loss."),
    Setting(
        "gating",
        "balance_scope",
        str,
        f"Whose load it balances: {', '.join(BALANCE_SCOPES)}.",
    ),
    Setting("gating", "z_loss", float, "Weight of the router z-loss."),
    Setting(
        "gating", "options", list[str], _router_options(), "none", "--router-option"
    ),
    Setting("layout", "dp", int, "Data-parallel replicas.", "ranks / (tp pp cp)"),
    Setting("layout", "ep", int, "Expert-parallel ranks, a divisor of dp.", "dp"),
    Setting("layout", "tp", int, "Tensor-parallel ranks of a layer."),
    Setting("layout", "pp", int, "Pipeline stages."),
    Setting("layout", "order", str, "Axes over ranks, the fastest first."),
    Setting("layout", "zero", int, "ZeRO stage: 0, 1, 2 or 3."),
    Setting("training", "iterations", int, "Steps."),
    Setting("training", "micro_batch", int, "Sequences of a rank in one forward pass."),
    Setting("training", "accumulation", int, "Micro-batches of a step.", "pp"),
    Setting("training", "learning_rate", float, "Peak of AdamW's learning rate."),
    Setting(
        "training",
        "warmup",
        int,
        "Steps over which the learning rate rises.",
        flag="--learning-rate-warmup",
    ),
    Setting("training", "seed", int, "Seed of everything."),
    Setting("training", "device", str, "cpu or cuda."),
    Setting("training", "dtype", str, "Of parameters: float32, float64 or bfloat16."),
    Setting("training", "precision", str, "Of products: bfloat16.", "as dtype"),
    Setting("training", "recompute", str, "Recomputation: none, full.", "none"),
    Setting(
        "training",
        "corpus",
        str,
        "Text: a file, folder or glob.",
        "Python's own library",
    ),
)

UNLISTED = ("virtual", "until_steady")
"""Fields of the training that a verb sets itself."""

PANELS = {
    "model": "Model",
    "gating": "Routing",
    "layout": "Parallelism",
    "training": "Training",
}


def describe(ranks: int, chosen: Mapping[str, Any]) -> Workload:
    """The workload of ``ranks`` ranks with the chosen fields, others at their default.

    Parameters
    ----------
    ranks
        Data-parallel ranks times those of the other axes: what dp is, if not chosen.
    chosen
        Values by field name, and a preset's name as "model"; what is absent or None
        was not chosen.  A model of another size than the preset's follows the rules of
        :func:`~moetraffic.patterns.scaled`.

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
        part: {
            s.field: given[s.field]
            for s in SETTINGS
            if s.part == part and s.field in given
        }
        for part in PANELS
    }
    parts["training"] |= {n: given[n] for n in UNLISTED if n in given}
    if "recompute" in given:
        parts["training"]["recompute"] = _recomputes(given["recompute"])
    model: ModelShape = scaled(base.pop("model"), parts.pop("model"))
    parts["layout"] = _whole(ranks, parts["layout"])
    if not model.experts:
        parts["layout"]["ep"] = given.get("ep", 1)
    made = {part: replace(base[part], **new) for part, new in parts.items()}
    return Workload(model=model, **made)


def _base(model: str) -> dict[str, Any]:
    """The parts of a workload that options change: the default's, or a preset's."""
    default = Workload()
    if not model:
        return {part: getattr(default, part) for part in PANELS}
    found = preset(model)
    return {
        "model": found.model,
        "gating": found.gating,
        "layout": ParallelLayout(),
        "training": replace(default.training, micro_batch=found.micro_batch),
    }


def _router_defaults(router: str) -> dict[str, Any]:
    """What this router has one value of, or not the default."""
    spec = ROUTERS.get(router)
    if spec is None:
        return {}
    own: dict[str, Any] = {"k": spec.k, "capacity_factor": spec.capacity_factor}
    if Workload().gating.dispatch not in spec.dispatch:
        own["dispatch"] = spec.dispatch[0]
    return {name: value for name, value in own.items() if value is not None}


def parse_options(texts: Sequence[str]) -> dict[str, OptionValue]:
    """``["groups=4", "score=softmax"]`` as a mapping, values by what they look like.

    ``true`` and ``false`` are truth values; what reads as a number is one.

    Raises
    ------
    LayoutError
        If a text is not ``name=value``, or a name comes twice.
    """
    found: dict[str, OptionValue] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise LayoutError(
                f"a router option is name=value, not {text!r}: write for example "
                "--router-option seed=1"
            )
        if name in found:
            raise LayoutError(
                f"a router option is given once, but {name} is {found[name]} and "
                f"{value}: leave out one of them"
            )
        found[name] = _value(value)
    return found


def _value(text: str) -> OptionValue:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _recomputes(text: str) -> bool:
    """Whether blocks are computed twice, as ``pattern`` and ``estimate`` call it."""
    if text not in ("none", "full"):
        raise LayoutError(
            f"recomputation is none or full in a training, not {text!r}: change "
            "--recompute"
        )
    return text == "full"


def _whole(ranks: int, layout: Mapping[str, Any]) -> dict[str, Any]:
    """The layout's fields, with the dp that all ranks make and an ep as wide as dp."""
    sizes = {axis: layout.get(axis, 1) for axis in ("dp", "tp", "pp", "cp")}
    if min(sizes.values()) < 1:
        return dict(layout)  # refused by ParallelLayout, which says which one
    if "dp" not in layout:
        sizes["dp"] = max(1, ranks // (sizes["tp"] * sizes["pp"] * sizes["cp"]))
    if prod(sizes.values()) != ranks:
        raise LayoutError(
            "the ranks must be dp x tp x pp x cp, but there are "
            f"{ranks} for {' x '.join(map(str, sizes.values()))}: change the number of "
            "ranks, --dp, --tp or --pp"
        )
    return {"ep": sizes["dp"], **layout, "dp": sizes["dp"]}


def takes_workload(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of SETTINGS; it gets them as ``chosen``, by field."""
    signature = inspect.signature(verb, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "chosen"]
    options = [_model_option(), *(_option(setting) for setting in SETTINGS)]

    @functools.wraps(verb)
    def with_options(**given: Any) -> None:
        chosen = {
            name: given.pop(name) for name in (MODEL, *(s.field for s in SETTINGS))
        }
        verb(**given, chosen=chosen)

    every = [*own, *options]
    with_options.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in every}
    return with_options


def _model_option() -> inspect.Parameter:
    about = typer.Option(
        help="A preset, see moetraffic models; other options change it.",
        show_default="tiny",
        rich_help_panel=PANELS["model"],
    )
    return inspect.Parameter(
        MODEL,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, about],
    )


def _option(setting: Setting) -> inspect.Parameter:
    default = getattr(getattr(Workload(), setting.part), setting.field)
    about = typer.Option(
        *([setting.flag] if setting.flag else []),
        help=setting.text,
        show_default=setting.default or str(default),
        rich_help_panel=PANELS[setting.part],
    )
    return inspect.Parameter(
        setting.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[setting.kind | None, about],
    )
