"""Command-line options that several verbs share, or that set fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from moetraffic.errors import AnalysisError, MoetrafficError
from moetraffic.patterns.algorithms import ALGORITHMS
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, number_list

T = TypeVar("T")
PLAIN = (int, float, str, bool, Path)
"""Types that an option supports directly, or combined with None."""


def option(
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

    Parameters
    ----------
    help
        Help text, a full sentence.
    names
        Spellings; the parameter's name with dashes if none is given.
    panel
        Heading in the help text above the option.
    shown
        Description of the default in the help text, if its value is not meaningful.
    choices
        The allowed values; shells complete them.
    read
        Function that parses the command-line text.
    above, min, max
        Bounds of a number: exclusive minimum, inclusive minimum, inclusive maximum.
    more
        Further arguments of ``typer.Option``.

    Returns
    -------
    typer.models.OptionInfo
        For ``typing.Annotated``.
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
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


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
                raise typer.BadParameter(f"it must be {rule}, but is {value:g}")
        return value

    return checked


def picture(path: Path | None) -> Path | None:
    """Return the path of a picture after checking that it ends in .png.

    Raises
    ------
    MoetrafficError
        If it has another extension.
    """
    if path is not None and path.suffix.lower() != ".png":
        raise MoetrafficError(
            f"pictures are PNG files, but {path.name!r} has another ending: name it "
            f"{path.stem or 'picture'}.png"
        )
    return path


TraceFile = Annotated[Path, typer.Argument(help="Trace file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, option("Overwrite existing outputs.")]
Plot = Annotated[Path | None, option("PNG picture to write.", callback=picture)]
Iterations = Annotated[
    range | None,
    option(
        "Use only iterations in the half-open range A:B.",
        read=iteration_range,
        metavar="A:B",
    ),
]
Layers = Annotated[
    list[str] | None,
    option("Use only the MoE layers of a list: 1,3:6.", "--layers", "--layer"),
]
"""Parsed by :func:`layer_numbers`; the option may be repeated."""
Phase = Annotated[str, option("Phase of the exchange whose wire bytes are used.")]
Of = Annotated[
    str | None,
    option(
        "Use only demand (token counts) or only wire (bytes).",
        shown="both",
    ),
]
Operations = Annotated[
    str | None,
    option(
        "Collectives whose traffic is summed, such as all_to_all,all_reduce.",
        shown="all",
    ),
]
Algorithm = Annotated[
    str, option(f"Algorithm of all-reduces: {', '.join(ALGORITHMS)}.")
]
Threads = Annotated[
    int, option("Number of threads that read and compute.", shown="all cores", min=0)
]


def selection(
    layers: list[str] | None, iterations: range | None, phase: str
) -> dict[str, Any]:
    """Return the keyword arguments of analyses that select exchanges."""
    return {
        "layers": layer_numbers(layers),
        "phase": phase,
        "iterations": iterations,
    }


def subjects(of: str | None) -> tuple[str, ...]:
    """Return the analyzed quantities of an exchange: demand, wire, or both."""
    return ("demand", "wire") if of is None else (of,)


def layer_numbers(given: list[str] | None) -> tuple[int, ...] | None:
    """Parse the layer numbers of all given lists; None stands for all layers.

    Raises
    ------
    TraceError
        If a text is not a list of numbers.
    """
    return number_list(",".join(given), "layers") if given else None


def operation_names(trace: Trace, given: str | None) -> list[str] | None:
    """Return the operations that were given, with commas; None for all.

    Raises
    ------
    AnalysisError
        If the trace does not have one.
    """
    known = sorted({s.operation for s in trace.sites} - {"routing"})
    names = None if given is None else given.split(",")
    if names is not None and not set(names) <= set(known):
        raise AnalysisError(
            f"the trace has {', '.join(known)}, but operations are {given!r}: choose "
            "among these"
        )
    return names


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
    """Derive command-line options from the fields of a dataclass.

    Parameters
    ----------
    kind
        The dataclass.
    panel
        Heading of the options in the help text.
    settings
        Help text, or :class:`Setting` of the option, by field.
    optional
        Whether an omitted option is None instead of the field's default.

    Returns
    -------
    dict
        Parameters of a command, by field, for :func:`takes`.
    """
    hints = get_type_hints(kind)
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
            s.help,
            *s.flag.split(),
            panel=panel,
            shown=shown,
            **(s.rule or {}),
        )
        found[name] = inspect.Parameter(
            s.flag.split()[-1].lstrip("-").replace("-", "_") if s.flag else name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if optional else default,
            annotation=Annotated[of | None if optional else of, about],
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


def told(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Return the given options that are on the command line, as they are spelled.

    Options in a configuration file are not included: such a file serves many runs.
    """
    spelled = {p.name: max(p.opts, key=len) for p in context.command.params}
    return [
        spelled[name]
        for name in names
        if (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
    ]


def refuse_idle(
    context: typer.Context,
    names: Sequence[str],
    why: str,
    *,
    error: type[MoetrafficError] = MoetrafficError,
) -> None:
    """Reject options that have no effect in combination with the others.

    Parameters
    ----------
    context
        Context of the verb.
    names
        Parameters of the verb that have no effect.
    why
        Condition under which they have an effect, for the message.
    error
        Class of the error to raise.

    Raises
    ------
    MoetrafficError
        Of class ``error``, if one of the options is on the command line.
    """
    idle = told(context, names)
    if idle:
        verb, them = ("is", "it") if len(idle) == 1 else ("are", "them")
        raise error(f"{why}, but {', '.join(idle)} {verb} given: leave {them} out")
