"""``moetraffic models``: the presets, their sizes and where these come from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from moetraffic.patterns import PRESETS, Preset, preset

from .output import console, print_json


def models(
    name: Annotated[str, typer.Argument(help="One of them, with all its fields.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models that capture trains by name, or describe one.

    Example: moetraffic models mixtral-8x7b
    """
    told = [preset(name)] if name else list(PRESETS.values())
    if as_json:
        print_json({found.name: as_dict(found) for found in told})
    elif name:
        console.print(details(told[0]))
    else:
        console.print(listing(told))
        console.print(
            "capture --model NAME trains one; --layers, --hidden ... resize it"
        )


def as_dict(found: Preset) -> dict[str, Any]:
    """A preset as plain data, its parameters by part."""
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


def listing(told: list[Preset]) -> Table:
    """A row a preset."""
    table = Table(box=None, header_style="bold")
    table.add_column("model")
    for column in ("layers", "hidden", "experts", "k", "parameters", "active"):
        table.add_column(column, justify="right")
    table.add_column("source", overflow="fold")
    for found in told:
        shape, count = found.model, found.parameters
        table.add_row(
            found.name,
            str(shape.layers),
            str(shape.hidden),
            str(shape.experts or "dense"),
            str(found.gating.k) if shape.experts else "",
            number(count.total),
            number(count.active),
            found.source,
        )
    return table


def details(found: Preset) -> Table:
    """Everything of one preset: a row a field that differs from the default."""
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    default = type(found.model)()
    for field, value in asdict(found.model).items():
        if value != getattr(default, field) or field in ("layers", "hidden", "heads"):
            table.add_row(field.replace("_", " "), str(value))
    if found.model.experts:
        for field, value in asdict(found.gating).items():
            if field != "options":
                table.add_row(field.replace("_", " "), str(value))
        for option, value in found.gating.options.items():
            table.add_row(f"router's {option}", str(value))
    table.add_row("micro batch", str(found.micro_batch))
    count = found.parameters
    for part, value in {**asdict(count), "total": count.total}.items():
        table.add_row(f"{part} parameters", f"{value:,}")
    if found.published:
        table.add_row("published parameters", f"{found.published:,}")
    for part, value in found.left_out.items():
        table.add_row(f"left out: {part}", f"{value:,}")
    table.add_row("source", found.source)
    if found.remark:
        table.add_row("remark", found.remark)
    return table


def number(count: int) -> str:
    """A count in millions or thousand millions.

    Examples
    --------
    >>> number(2_673_792), number(46_702_792_704)
    ('2.7M', '46.7B')
    """
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
