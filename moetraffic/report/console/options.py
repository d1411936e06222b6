"""Command-line options that several verbs share or that set a dataclass's fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from moetraffic.errors import MoetrafficError
from moetraffic.patterns.algorithms import ALGORITHMS
from moetraffic.trace.iterations import iteration_range, number_list

T = TypeVar("T")
PLAIN = (int, float, str, bool, Path)
"""Types that an option can have as they are, or with None."""


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
    """Describe an option, with the rule that its values follow.

    Parameters
    ----------
    help
        A full sentence.
    names
        Spellings; the parameter's name with dashes if none is given.
    panel
        Heading of the help under which the option stands.
    shown
        The default in words, where its value does not say it.
    choices
        The only values that are allowed; shells complete them.
    read
        Turns the text of the command line into the value.
    above, min, max
        Bounds of a number: exclusive below, and inclusive.
    more
        As ``typer.Option`` has it.

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
    # a default may be the value already
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
    """Return the path of a picture, which must end in .png.

    Raises
    ------
    MoetrafficError
        If it has another ending.
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
"""Read with :func:`layer_numbers`; the option may be given again."""
Phase = Annotated[str, option("Phase of the exchange whose wire bytes are used.")]
Of = Annotated[
    str | None,
    option(
        "Use only demand (token counts) or only wire (bytes).",
        shown="both",
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
    """Return the options that select exchanges, as analyses take them."""
    return {
        "layers": layer_numbers(layers),
        "phase": phase,
        "iterations": iterations,
    }


def subjects(of: str | None) -> tuple[str, ...]:
    """Return what of an exchange is analyzed: demand, wire, or both."""
    return ("demand", "wire") if of is None else (of,)


def layer_numbers(given: list[str] | None) -> tuple[int, ...] | None:
    """Return the layers of all lists that were given; None for every layer.

    Raises
    ------
    TraceError
        If one is no list of numbers.
    """
    return number_list(",".join(given), "layers") if given else None


@dataclass(frozen=True)
class Setting:
    """How the option that sets a field differs from the field."""

    help: str
    flag: str = ""  # the option, where it is not named as the field
    shown: str | None = None  # the default in words
    kind: Any = None  # type on the command line, where the field has another
    default: Any = ...  # likewise
    rule: Mapping[str, Any] | None = None  # further arguments of option()


def field_options(
    kind: type,
    panel: str,
    settings: Mapping[str, str | Setting],
    *,
    optional: bool = False,
) -> dict[str, inspect.Parameter]:
    """Make options from the fields of a dataclass: their types and defaults.

    Parameters
    ----------
    kind
        The dataclass.
    panel
        Heading of the help.
    settings
        Help, or how an option differs, by field.
    optional
        Whether an option that is not given is None, and not the field's default.

    Returns
    -------
    dict
        Parameters of a command by field, for :func:`takes`.
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
            *([s.flag] if s.flag else []),
            panel=panel,
            shown=shown,
            **(s.rule or {}),
        )
        found[name] = inspect.Parameter(
            s.flag.lstrip("-").replace("-", "_") or name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if optional else default,
            annotation=Annotated[of | None if optional else of, about],
        )
    return found


def takes(
    **groups: Mapping[str, inspect.Parameter],
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a verb the options of :func:`field_options`, by the name of a parameter.

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
    """Return which of some options are on the command line, as they are spelled.

    A configuration file holds for many runs: what it sets contradicts none of them.
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
    """Refuse options that have no effect beside the others.

    Parameters
    ----------
    context
        Of the verb.
    names
        Its parameters.
    why
        When they have an effect, or what takes their place, in words.
    error
        What to raise.

    Raises
    ------
    MoetrafficError
        Of the kind asked for.
    """
    idle = told(context, names)
    if idle:
        verb, them = ("is", "it") if len(idle) == 1 else ("are", "them")
        raise error(f"{why}, but {', '.join(idle)} {verb} given: leave {them} out")
