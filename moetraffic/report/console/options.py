"""Command-line options that several verbs share, or that set fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar, get_type_hints

import typer

from moetraffic.errors import AnalysisError, LayoutError, MoetrafficError, TraceError
from moetraffic.patterns.collectives import ALGORITHMS
from moetraffic.report.chart import picture_format
from moetraffic.trace import PHASES, Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers
from moetraffic.trace.model import MOST_TOKEN_SAMPLE
from moetraffic.units import byte_count

T = TypeVar("T")
PLAIN = (int, float, str, bool, Path)
"""Types that an option supports directly, or combined with None."""

NO_TRACE = (".json", ".csv", ".parquet", ".xlsx", ".html", ".txt")
"""File extensions that promise another format than HDF5."""


def option(
    default: Any,
    help: str,
    *names: str,
    panel: str | None = None,
    shown: str | None = None,
    choices: Sequence[str] = (),
    read: Callable[[str], Any] | None = None,
    above: float | None = None,
    min: float | None = None,
    max: float | None = None,
    **more: Any,
) -> Any:
    """Describe a command-line option and the constraint on its values.

    ``default`` is ``...`` where the option is required, or its default stands with the
    parameter. A number may be bounded by ``above`` (exclusive), ``min`` and ``max``;
    ``choices`` are the allowed texts, which shells complete; ``read`` parses a text.
    ``names`` are the spellings (the parameter's name if empty), ``panel`` is the
    heading in the help text, and ``shown`` describes a default whose value is not
    meaningful. Further arguments are those of ``typer.Option``.
    """
    if choices:
        more |= {"parser": _one_of(choices), "metavar": "TEXT"}
        more["autocompletion"] = lambda incomplete: [
            choice for choice in choices if choice.startswith(incomplete)
        ]
    elif read is not None:
        more = {"metavar": "TEXT", "parser": _reading(read)} | more
    elif (above, min, max) != (None, None, None):
        more["callback"] = _within(above, min, max)
    if shown is not None:
        more["show_default"] = shown
    return typer.Option(default, *names, help=help, rich_help_panel=panel, **more)


def trace_output(default: Any, help: str = "Trace to write.", **more: Any) -> Any:
    """Describe the option that names a trace to write, which is an HDF5 file."""
    return option(default, help, "-o", "--output", callback=_trace_name, **more)


def _trace_name(path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() in NO_TRACE:
        raise MoetrafficError(
            f"a trace is an HDF5 file, but {path} ends in {path.suffix}: name it "
            f"{path.with_suffix('.h5')}"
        )
    return path


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def chosen(value: str) -> str:
        if value not in choices:
            named = ", ".join(filter(None, choices))
            raise typer.BadParameter(f"{value!r} is not one of {named}")
        return value

    return chosen


def _reading(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    # a default may already be a parsed value
    return lambda value: read(value) if isinstance(value, str) else value


def _within(
    above: float | None, least: float | None, most: float | None
) -> Callable[[Any], Any]:
    def checked(value: float | None) -> float | None:
        if value is None:
            return None
        for holds, rule in (
            (abs(value) < inf, "finite"),
            (above is None or above < value, f"above {above}"),
            (least is None or least <= value, f"at least {least}"),
            (most is None or value <= most, f"at most {most}"),
        ):
            if not holds:
                raise typer.BadParameter(f"it must be {rule}, but is {value:.15g}")
        return value

    return checked


def trace_argument(help: str) -> Any:
    """Describe the argument of traces to read, refused first of all if absent."""
    return typer.Argument(help=help, callback=_existing)


def _existing(given: Path | list[Path] | None) -> Path | list[Path] | None:
    for path in [given] if isinstance(given, Path) else given or []:
        if not path.exists():
            raise TraceError(f"there is no file {path}: check the path")
    return given


TraceFile = Annotated[Path, trace_argument("Trace file.")]


def only_option(default: None, parts: Sequence[str], **more: Any) -> Any:
    """Describe the option that selects parts of a result: see :func:`parts_of`."""
    help = f"Print the tables of these parts alone, with commas: {', '.join(parts)}."
    return option(default, help, "--only", shown="summary", metavar="TEXT", **more)


def parts_of(
    only: str | None,
    parts: Sequence[str],
    *,
    flag: str = "--only",
) -> tuple[str, ...]:
    """Read the names of parts of a result; empty if none are given.

    Raises
    ------
    MoetrafficError
        If a name is none of ``parts``.
    """
    if only is None:
        return ()
    names = tuple(dict.fromkeys(only.split(",")))
    if unknown := [name for name in names if name not in parts]:
        raise MoetrafficError(
            f"{flag} takes {', '.join(parts)}, but {', '.join(map(repr, unknown))} is "
            "none of these: choose among them"
        )
    return names


def on_command_line(context: typer.Context, names: Iterable[str]) -> list[str]:
    """List the parameters that the command line gives: no default, no file of options.

    A file of options serves many runs.
    """
    sources = {name: context.get_parameter_source(name) for name in names}
    return [name for name, s in sources.items() if s and s.name == "COMMANDLINE"]


AllTables = Annotated[
    bool, option(..., "Print all tables, not the summary alone.", "--tables")
]
AsJson = Annotated[bool, option(..., "Print JSON.", "--json")]
Force = Annotated[bool, option(..., "Overwrite existing outputs.", "--force")]
Every = Annotated[
    int, option(..., "Record one iteration of this many, for long runs.", min=1)
]
MaxSize = Annotated[
    int | None,
    option(
        ...,
        "Maximum size of what all ranks record, such as 20GB.",
        "--max-size",
        read=byte_count,
        shown="unlimited",
    ),
]
TokenSample = Annotated[
    int,
    option(
        ...,
        "Record the experts of this many tokens of each layer and micro-batch of a "
        "rank, for co-activation and hosts per token.",
        "--token-sample",
        min=0,
        max=MOST_TOKEN_SAMPLE,
    ),
]


def _negated(given: bool) -> bool:
    return not given


def _drawable(style: str) -> str:
    from moetraffic.report.figure_style import FigureStyle

    with FigureStyle(style=style).applied():
        return style


def _width(text: str) -> float:
    from moetraffic.report.figure_style import inches

    return inches(text)


def _look(
    name: str, kind: Any, default: Any, help: str, **more: Any
) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    about = option(default, help, flag, panel="Appearance", **more)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=about, annotation=kind
    )


APPEARANCE = {
    "width_in": _look(
        "width",
        float | None,
        None,
        "Width of each picture, such as 3.4in, 86mm or 252pt.",
        shown="9 to 12 in",
        read=_width,
    ),
    "title": _look(
        "no_title",
        bool,
        False,
        "Write no headline and no description of the data.",
        callback=_negated,
    ),
    "style": _look(
        "style",
        str,
        "",
        "Style of matplotlib, or a .mplstyle file.",
        shown="yours, from matplotlibrc",
        read=_drawable,
    ),
}
"""Options of a verb that draws, for :func:`takes`."""


def picture(help: str, **more: Any) -> Any:
    """Describe the option that names a picture to write: its annotated type."""

    def checked(path: Path | None) -> Path | None:
        if path is not None:
            picture_format(path)
        return path

    return Annotated[Path | None, option(..., help, callback=checked, **more)]


Plot = picture("PNG, PDF or SVG picture to write.")
Iterations = Annotated[
    range | None,
    option(
        ...,
        "Use only iterations in the half-open range A:B.",
        read=iteration_range,
        metavar="A:B",
    ),
]
Layers = Annotated[
    list[str] | None,
    option(..., "Use only the MoE layers of a list: 1,3:6.", "--layers"),
]
"""Parsed by :func:`moetraffic.trace.iterations.layer_numbers`; may be repeated."""
Phase = Annotated[
    str, option(..., "Phase of the exchange whose wire bytes are used.", choices=PHASES)
]
Ep = Annotated[
    int | None,
    option(
        ...,
        "Ranks that share the experts of a load without source ranks.",
        min=1,
        shown="none",
    ),
]
SUMMED = "Collectives whose traffic is summed, such as all_to_all,all_reduce."
Operations = Annotated[str | None, option(..., SUMMED, shown="all")]
Algorithm = Annotated[
    str,
    option(
        ...,
        f"Algorithm of all-reduces: {', '.join(ALGORITHMS)}.",
        choices=list(ALGORITHMS),
    ),
]
Threads = Annotated[
    int | None,
    option(..., "Number of threads that read and compute.", shown="all cores", min=1),
]


def selection(
    layers: list[str] | None, iterations: range | None, phase: str
) -> dict[str, Any]:
    """Return the keyword arguments of functions that select exchanges."""
    chosen = {"layers": layer_numbers(layers), "phase": phase}
    return {**chosen, "iterations": iterations}


def operation_names(trace: Trace, given: str | None) -> list[str] | None:
    """Return the operations that were given, with commas; None for all.

    AnalysisError: the trace does not have one.
    """
    known = sorted({s.operation for s in trace.sites} - {"routing"})
    names = None if given is None else given.split(",")
    if names is not None and not set(names) <= set(known):
        raise AnalysisError(
            f"the trace has {', '.join(known)}, but operations are {given!r}: choose "
            "among these"
        )
    return names


def positive_numbers(
    text: str | None, what: str, example: str, *, kind: type = int, below: float = inf
) -> list[Any]:
    """Parse positive numbers with commas between; none where the text is None.

    Raises
    ------
    MoetrafficError
        If the text is not a list of such numbers; the message begins with ``what``.
    """
    if text is None:
        return []
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < below for number in found):
        raise MoetrafficError(
            f"{what} with commas between, not {text!r}: give {example}"
        )
    return found


def named_values(texts: Iterable[str], what: str, example: str) -> dict[str, str]:
    """Parse texts ``name=value``, in which each name comes once.

    Raises
    ------
    LayoutError
        If a text is another, or a name comes twice; the message begins with ``what``.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise LayoutError(
                f"{what} is name=value, not {text!r}: write for example {example}"
            )
        if name in found:
            raise LayoutError(
                f"{what} is given once, but {name} is {found[name]} and {value}: leave "
                "out one of them"
            )
        found[name] = value
    return found


@dataclass(frozen=True)
class Setting:
    """Differences between a dataclass field and the option that sets it."""

    help: str
    flag: str = ""  # spellings of the option, the last one long; the field's if empty
    shown: str | None = None  # description of the default
    kind: Any = None  # type of the option, if it differs from the field's
    default: Any = ...  # default of the option, if it differs from the field's
    rule: Mapping[str, Any] | None = None  # further arguments of option()


def field_options(
    kind: type,
    panel: str,
    settings: Mapping[str, str | Setting],
    *,
    optional: bool = False,
) -> dict[str, inspect.Parameter]:
    """Derive command-line options from the fields of a dataclass, for :func:`takes`.

    ``settings`` has the help text, or a :class:`Setting`, by field; ``panel`` is their
    heading in the help text. With ``optional``, an omitted option is None instead of
    the field's default.
    """
    # Python 3.10 takes InitVar[...] for no type, and it is no field
    hints = get_type_hints(kind, localns={"InitVar": Optional})
    defaults = {f.name: f.default for f in fields(kind)}
    found = {}
    for name, setting in settings.items():
        s = Setting(setting) if isinstance(setting, str) else setting
        default = defaults[name] if s.default is ... else s.default
        of = s.kind or hints[name]
        if s.kind is None and of not in PLAIN and default is not None:
            of = type(default)
        shown = str(default) if optional and s.shown is None else s.shown
        about = option(
            None if optional else default,
            s.help,
            *s.flag.split(),
            panel=panel,
            shown=shown,
            **(s.rule or {}),
        )
        found[name] = inspect.Parameter(
            s.flag.split()[-1].lstrip("-").replace("-", "_") if s.flag else name,
            inspect.Parameter.KEYWORD_ONLY,
            default=about,
            annotation=of | None if optional else of,
        )
    return found


def takes(
    **groups: Mapping[str, inspect.Parameter],
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add options of :func:`field_options` to a verb, as one parameter per group.

    The parameter receives the values as a dict by field.
    """

    def taking(verb: Callable[..., T]) -> Callable[..., T]:
        signature = inspect.signature(verb, eval_str=True)
        every = [p for name, p in signature.parameters.items() if name not in groups]
        every += [p for group in groups.values() for p in group.values()]

        @functools.wraps(verb)
        def with_options(**given: Any) -> T:
            for name, group in groups.items():
                given[name] = {of: given.pop(p.name) for of, p in group.items()}
            return verb(**given)

        with_options.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in every}
        return with_options

    return taking
