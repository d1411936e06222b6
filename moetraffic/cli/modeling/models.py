"""``moetraffic models``: the model presets, their sizes and sources."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

from typer import Argument

from moetraffic.cli.show import AllTables, AsJson, Force, Only, Output, show
from moetraffic.errors import LayoutError
from moetraffic.patterns import PRESETS, Preset, preset
from moetraffic.patterns.bandwidth import published_systems
from moetraffic.report.console.options import takes
from moetraffic.result import Result
from moetraffic.units import short_count

from . import choices as o

SIZES = ("layers", "hidden", "heads", "experts", "k", "sequence")


@takes(sizes={name: o.OPTIONS[name] for name in SIZES})
def models(
    name: Annotated[str, Argument(help="Preset to show with all its fields.")] = "",
    settings: o.Set = None,
    help_fields: o.HelpFields = False,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    output: Output = None,
    force: Force = False,
    *,
    sizes: dict[str, Any],
) -> None:
    """List the model presets, or show one with all its fields, or with other sizes.

    Example: moetraffic models mixtral-8x7b
    """
    chosen = o.given(sizes, settings)
    if chosen and not name:
        raise LayoutError("sizes are of one model, but none is named: name it")
    rows = o.combinations({"model": [name], **chosen}) if name else []
    found = [sized(row) for row in rows] or list(PRESETS.values())
    result = described(found[0]) if len(found) == 1 else listed(found)
    show(result, tables=tables, only=only, as_json=as_json, output=output, force=force)


def sized(row: o.Row) -> Preset:
    """Return a preset with other sizes, of which no parameter count is published."""
    base = preset(row["model"])
    if len(row) == 1:
        return base
    shape, gating, _ = o.model_of(row)
    return replace(base, model=shape, gating=gating, published=0, left_out={})


def facts(found: Preset) -> dict[str, Any]:
    """Return the figures of a preset that stand in a row."""
    shape, count = found.model, found.parameters
    return {
        "model": found.name,
        **{"layers": shape.layers, "hidden": shape.hidden},
        **{"experts": shape.experts, "k": found.gating.k if shape.experts else None},
        **{"parameters": count.total, "active_parameters": count.active},
        "origin": found.source,
    }


def listed(found: list[Preset]) -> Result:
    """Show presets, a row each."""
    sizes = [one.parameters.total for one in found]
    sparse = sum(bool(one.model.experts) for one in found)
    return Result(
        verb="models",
        head=f"{len(found)} models of {short_count(min(sizes))} to "
        f"{short_count(max(sizes))} parameters, {sparse} of them mixtures of experts",
        tables={
            "models": [facts(one) for one in found],
            "platforms": [*published_systems("platforms").values()],
            "protocols": [
                {
                    "platform": name,
                    **{rate: row[rate] for rate in ("link_gbps", "achieved_gbps")},
                    "origin": row["source"],
                }
                for name, row in published_systems("protocols").items()
            ],
        },
        screen=("models",),
        verdict=(
            "moetraffic models NAME describes one; capture --model NAME trains it.",
            "Systems of estimate --platform: --only platforms.",
        ),
    )


def described(found: Preset) -> Result:
    """Show one preset: its sizes, and all fields that differ from the default."""
    shape, count = found.model, found.parameters
    default = type(shape)()
    parts = {**asdict(count), "total": count.total}
    fields = {
        name: value
        for name, value in asdict(shape).items()
        if value != getattr(default, name) or name in ("layers", "hidden", "heads")
    }
    if shape.experts:
        fields |= {n: v for n, v in asdict(found.gating).items() if n != "options"}
        fields |= {f"router's {n}": v for n, v in found.gating.options.items()}
    published = "no number is published"
    if found.published:
        total = count.total + sum(found.left_out.values())
        published = f"{total / found.published - 1:+.1%} from the published number"
    return Result(
        verb="models",
        head=f"{found.name}: {found.source}",
        tables={
            "fields": [{"field": n, "fact": str(v)} for n, v in fields.items()],
            "parameters": [
                {"parameters_of": part, "parameters": n} for part, n in parts.items()
            ],
        },
        screen=("fields",),
        verdict=(
            f"{count.total:,} parameters ({published}), {short_count(count.active)} of "
            "them active for a token.",
        ),
        notes=tuple(
            [*([found.remark] if found.remark else [])]
            + [
                f"left out of the count: {part}, {n:,}"
                for part, n in found.left_out.items()
            ]
        ),
        data={"micro_batch": found.micro_batch, "gating": asdict(found.gating)},
    )
