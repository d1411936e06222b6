"""``moetraffic models``: the model presets, their sizes and sources."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from moetraffic.cli.output import Printing, printed
from moetraffic.patterns import PRESETS, Preset, preset
from moetraffic.report.console.options import takes
from moetraffic.tables import Table
from moetraffic.units import short_count as number

from .model_shape import SHAPE, model_of

PARTS = ("models",)


@printed(PARTS)
@takes(shape=SHAPE)
def models(
    name: Annotated[str, typer.Argument(help="Preset to show with all fields.")] = "",
    *,
    shape: dict[str, Any],
    printing: Printing,
) -> None:
    """List the model presets, or show one with all its fields, or with other sizes.

    Example: moetraffic models mixtral-8x7b
    """
    found = [_sized(preset(name), shape)] if name else list(PRESETS.values())
    data = {"models": {one.name: as_dict(one) for one in found}}
    shown = [described(found[0])] if name else named(found)
    parts = {"models": [details(found[0]) if name else listing(found)]}
    printing.present(data, *shown, parts=parts)


def _sized(found: Preset, chosen: dict[str, Any]) -> Preset:
    """Return a preset with other sizes, of which no parameter count is published."""
    if all(value is None for value in chosen.values()):
        return found
    made, gating, _ = model_of(found.name, chosen)
    return replace(found, model=made, gating=gating, published=0, left_out={})


def named(presets: list[Preset]) -> list[str]:
    """Name presets by kind, with the range of their parameters."""
    sizes = [one.parameters.total for one in presets]
    lines = [
        f"{len(presets)} presets of {number(min(sizes))} to {number(max(sizes))} "
        "parameters; moetraffic models NAME describes one."
    ]
    for kind, moe in (("Mixtures of experts", True), ("Dense models", False)):
        names = [one.name for one in presets if bool(one.model.experts) is moe]
        lines.append(f"{kind}: {', '.join(names)}.")
    return [
        *lines,
        "capture --model NAME trains one; --layers, --hidden ... resize it.",
    ]


def described(found: Preset) -> str:
    """Describe a preset in one sentence: shape, parameters, source, and a remark."""
    shape, count = found.model, found.parameters
    experts = (
        f"{shape.experts} experts, k={found.gating.k}" if shape.experts else "dense"
    )
    published = ""
    if found.published:
        total = count.total + sum(dict(found.left_out).values())
        published = f" ({total / found.published - 1:+.1%} from the published number)"
    remark = f"; {found.remark}" if found.remark else ""
    return (
        f"{found.name}: {shape.layers} layers, hidden {shape.hidden}, {experts}; "
        f"{count.total:,} parameters{published}, {number(count.active)} active; "
        f"{found.source}{remark}."
    )


def as_dict(found: Preset) -> dict[str, Any]:
    """Return a preset as plain data, with parameters by part."""
    count = found.parameters
    return {
        "model": asdict(found.model),
        "gating": asdict(found.gating),
        "micro_batch": found.micro_batch,
        "parameters": {**asdict(count), "total": count.total},
        "published": found.published or None,
        "left_out": dict(found.left_out),
        "source": found.source,
        "remark": found.remark,
    }


def listing(presets: list[Preset]) -> Table:
    """Tabulate presets, a row each."""
    columns = ("layers", "hidden", "experts", "k", "parameters", "active")
    rows = [
        (
            one.name,
            one.model.layers,
            str(one.model.hidden),
            one.model.experts or "dense",
            one.gating.k if one.model.experts else None,
            number(one.parameters.total),
            number(one.parameters.active),
            one.source,
        )
        for one in presets
    ]
    return Table(
        columns={"model": "", **dict.fromkeys(columns, ">"), "source": ""}, rows=rows
    )


def details(found: Preset) -> Table:
    """Tabulate one preset: the fields that differ from the default, and its sizes."""
    shape, default, told = found.model, type(found.model)(), as_dict(found)
    always = ("layers", "hidden", "heads")
    rows = {
        name: value
        for name, value in told["model"].items()
        if value != getattr(default, name) or name in always
    }
    if shape.experts:
        gating = told["gating"]
        options = gating.pop("options")
        rows |= gating | {f"router's {name}": v for name, v in options.items()}
    sizes = told["parameters"]
    if found.published:
        sizes["published"] = found.published
    rows |= {"micro_batch": found.micro_batch}
    rows |= {f"{part} parameters": f"{n:,}" for part, n in sizes.items()}
    rows |= {f"left out: {part}": f"{n:,}" for part, n in found.left_out.items()}
    rows |= {name: told[name] for name in ("source", "remark") if told[name]}
    return Table(rows=[(n.replace("_", " "), str(value)) for n, value in rows.items()])
