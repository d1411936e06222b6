"""Options of a model, a layout and a system: each takes one value or a list of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from moetraffic.cli import output
from moetraffic.errors import LayoutError
from moetraffic.patterns import Gating, Layout, ModelShape, preset, scaled
from moetraffic.patterns.layout import DISPATCHERS, RECOMPUTE, SCHEDULES
from moetraffic.report.console.options import named_values, on_command_line
from moetraffic.result import Result
from moetraffic.spelling import check_choice
from moetraffic.timemodel import System
from moetraffic.units import seconds
from moetraffic.workload.model import broken_rules
from moetraffic.workload.presets import read_config

MODEL_NAME = "gpt-1.3b"
"""The model of all verbs where none is named."""

Row = dict[str, Any]
"""Values of the given fields, by name: one of each."""


def _fields(
    part: type, names: Sequence[str] = (), *, but: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the defaults of fields of a dataclass that are numbers, names or bools."""
    return {
        f.name: None if f.default is MISSING else f.default
        for f in fields(part)
        if f.name not in but and (not names or f.name in names)
    }


OWN = ("name", "model", "k", "capacity_factor", "gpu", "bandwidth", "overlap")
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "model": _fields(ModelShape, but=OWN),
    "routing": _fields(Gating, ("k", "dispatch", "capacity_factor")),
    "layout": _fields(Layout, but=(*OWN, "keep")) | {"global_batch": None},
    "system": _fields(System, but=OWN),
    "gpu": {"attention": ""},
}
"""Defaults by field and by the part that it is of."""

PART = {name: part for part, defaults in FIELDS.items() for name in defaults}
DEFAULTS = {name: value for part in FIELDS.values() for name, value in part.items()}
COLUMN = {"zero": "zero_stage", "capacity_factor": "capacity"}
"""Columns of fields whose name has another meaning in tables."""

FLAGS = {"vocabulary": "--vocab", "virtual": "--virtual-stages"}
"""Options that have another name than their field."""

HELP: Mapping[str, Mapping[str, str]] = {
    "Model": {
        "layers": "Layers.",
        "hidden": "Hidden size.",
        "heads": "Attention heads.",
        "experts": "Experts of a layer; 0: dense.",
        "k": "Experts of a token.",
        "sequence": "Tokens of a sequence.",
        "vocabulary": "Vocabulary size.",
    },
    "Parallelism": {
        "pp": "Pipeline stages.",
        "tp": "Tensor-parallel ranks of a layer.",
        "dp": "Data-parallel ranks, those of --ep included.",
        "ep": "Expert-parallel ranks.",
        "etp": "Tensor-parallel ranks of an expert; as --tp.",
        "cp": "Context-parallel ranks.",
        "virtual": "Chunks of layers of a rank.",
        "schedule": f"Schedule: {', '.join(SCHEDULES)}.",
        "zero": "ZeRO stage: 0 to 3.",
        "shard": "Replicas among which ZeRO shards (HSDP); all.",
        "sequence_parallel": "Megatron's sequence parallelism.",
        "recompute": f"Recomputation: {', '.join(RECOMPUTE)}.",
        "dispatcher": f"Dispatch: {', '.join(DISPATCHERS)}.",
        "gpus_per_node": "GPUs of a node.",
    },
    "Batch": {
        "micro_batch": "Sequences of a replica in a pass.",
        "global_batch": "Sequences of an iteration.",
    },
}
"""Fields that have an option of their own: its help, by panel."""


def spelled(name: str) -> str:
    """Return the option that gives a field."""
    options = {option for texts in HELP.values() for option in texts}
    if name in DEFAULTS and name not in options:
        return f"--set {name}"
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


OPTIONS: Mapping[str, Parameter] = {
    name: Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=Option(
            False if name == "sequence_parallel" else None,
            spelled(name),
            help=help,
            rich_help_panel=panel,
        ),
        annotation=bool if name == "sequence_parallel" else str | None,
    )
    for panel, texts in HELP.items()
    for name, help in texts.items()
}
"""Options of model and layout, for ``takes``; each takes a list of values."""


def _list_fields(asked: bool) -> None:
    if asked:
        rows = [
            {"field": name, "part": PART[name], "default": value}
            for name, value in DEFAULTS.items()
        ]
        head = "Fields for --set NAME=VALUE; most have a list of values: NAME=1,2,4."
        output.console.print(
            Result(verb="fields", head=head, tables={"f": rows}, screen=("f",))
        )
        raise typer.Exit


Model = Annotated[
    str,
    Option(
        help="Model preset (moetraffic models lists them), or the config.json of a "
        "HuggingFace model.",
        rich_help_panel="Model",
    ),
]
ImbalanceFrom = Annotated[
    Path | None,
    Option(
        help="Trace whose load at --ep ranks is taken.", rich_help_panel="Parallelism"
    ),
]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="Another field; may be given again."),
]
HelpFields = Annotated[
    bool,
    Option(
        "--help-fields",
        help="List the fields of --set.",
        callback=_list_fields,
        is_eager=True,
    ),
]


def given(
    params: Mapping[str, Any], settings: Sequence[str] | None
) -> dict[str, list[Any]]:
    """Read the fields that the options of a verb give, each a list of values.

    ``params`` are the verb's parameters by name, ``settings`` those of ``--set``.

    Raises
    ------
    LayoutError
        If a field is unknown, given twice, or not a number where its default is one.
    """
    texts = {
        n: str(v) for n, v in params.items() if n in PART and v not in (None, False)
    }
    more = named_values(settings or (), "--set", "--set kv_heads=8")
    for name in more:
        check_choice("a field of --set", name, DEFAULTS, LayoutError)
        if name in texts:
            raise LayoutError(
                f"{name} is given by {spelled(name)} and --set: leave one out"
            )
    return {
        n: [_value(n, t) for t in parts(text)] for n, text in (texts | more).items()
    }


def parts(text: str) -> list[str]:
    """Split what commas separate."""
    pieces = text.strip("[]").split(",")  # brackets: of a list in a file of options
    return [part for piece in pieces if (part := piece.strip())]


def _value(name: str, text: str) -> Any:
    default = DEFAULTS[name]
    if name.endswith("_s") and PART[name] == "system" and "bytes" not in name:
        return seconds(text)
    if isinstance(default, str) and not name.endswith("dtype"):
        return text
    readers: tuple[Callable[[str], Any], ...] = (int, float)
    for read in readers:
        try:
            return read(text)
        except ValueError:
            continue
    words = {"true": True, "yes": True, "false": False, "no": False}
    if text.lower() in words:
        return words[text.lower()]
    if isinstance(default, str):
        return text
    raise LayoutError(f"{name} is a number, not {text!r}: change {spelled(name)}")


def combinations(chosen: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return every combination of the values of some fields; the first varies slowest.

    Examples
    --------
    >>> combinations({"dp": [1, 2], "zero": [0, 3]})[1]
    {'dp': 1, 'zero': 3}
    """
    rows = itertools.product(*chosen.values())
    return [dict(zip(chosen, row, strict=True)) for row in rows]


def varied(chosen: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return the values of every combination that differ, by column of a table."""
    names = [name for name, values in chosen.items() if len(values) > 1]
    columns = {name: COLUMN.get(name, name) for name in names}
    return [{columns[n]: row[n] for n in names} for row in combinations(chosen)]


def of_part(row: Row, part: str) -> Row:
    """Return the fields of a row that are of a part."""
    return {name: value for name, value in row.items() if PART.get(name) == part}


def model_of(row: Row) -> tuple[ModelShape, Gating, int]:
    """Return shape, routing and usual micro-batch of ``row["model"]`` and its sizes.

    Raises
    ------
    LayoutError
        If there is no such model, or its sizes cannot go together.
    """
    model = row["model"]
    if model.endswith(".json") or "/" in model:
        shape, k = read_config(model)
        gating, batch = Gating(), 1
        if k:
            gating = replace(gating, k=k, dispatch="dropless")
    else:
        found = preset(model)
        shape, gating, batch = found.model, found.gating, found.micro_batch
    sizes = of_part(row, "model")
    made = scaled(shape, sizes)
    # capture reads bytes when a model is resized; a calculation needs no text
    made = replace(made, vocabulary=sizes.get("vocabulary", shape.vocabulary))
    for rule, remedy in broken_rules(made):
        raise LayoutError(f"{rule}: {remedy.replace('--vocabulary', '--vocab')}")
    gating = replace(gating, **of_part(row, "routing"))
    if made.experts and not 1 <= gating.k <= made.experts:
        raise LayoutError(
            f"a token selects 1 to {made.experts} experts, but k is {gating.k}: change "
            "--k"
        )
    return made, gating, batch


def layout_fields(row: Row, micro_batch: int) -> Row:
    """Return the fields of a layout that a row gives, with the usual batch.

    Where no batch is given, there are as few micro-batches as fill the pipeline.
    """
    chosen = of_part(row, "layout")
    chosen.setdefault("micro_batch", micro_batch)
    if chosen.get("global_batch") is None and "accumulation" not in chosen:
        twice = chosen.get("schedule") == "dualpipe"
        chosen["accumulation"] = chosen.get("pp", 1) * (2 if twice else 1)
    return chosen


def refuse_idle(
    ctx: typer.Context,
    row: Row,
    inputs: Callable[[Row], Any],
    result: Callable[[Any], Any],
) -> None:
    """Refuse options that change nothing: without each, the result is another one.

    ``inputs`` are what a result is computed of, ``result`` what is compared.  Sizes of
    the model and hardware are facts, which may be stated where they change nothing; a
    file of options serves many runs.

    Raises
    ------
    LayoutError
        With the names of the options that have no effect.
    """
    made, idle = inputs(row), []
    told = result(made)
    for name in row:
        chosen = PART.get(name) in ("layout", "system") and name != "gpus_per_node"
        option = name if name in (*OPTIONS, "overlap") else "settings"
        if not (chosen or name == "overlap") or not on_command_line(ctx, [option]):
            continue
        try:
            other = inputs({n: v for n, v in row.items() if n != name})
            # what is as without it does no harm
            if other != made and result(other) == told:
                idle.append(spelled(name))
        except LayoutError:  # it cannot be left out
            continue
    if idle:
        raise LayoutError(
            f"{' and '.join(idle)} change{'s' * (len(idle) == 1)} nothing in this "
            "configuration: leave out"
        )
