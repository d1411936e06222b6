"""Options that have no effect in combination with others, which are rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from moetraffic.errors import MoetrafficError

from .options import APPEARANCE

WRITTEN = (
    *("--output", "--plot", "--save-model", "--fidelity"),
    *("--metrics", "--resume", "--program"),
)
"""Options that name what a verb writes."""

NEEDED = {
    **{f"--{p.name.replace('_', '-')}": ("--plot",) for p in APPEARANCE.values()},
    "--force": WRITTEN,
}
"""Options without effect where none of others is given."""

CHOOSING = ("analyze", "compare", "plot")
"""Verbs whose ``--only`` chooses what is computed, and so what ``--json`` prints."""


def refuse_lone(context: typer.Context) -> None:
    """Reject the options of :data:`NEEDED` on a command line without what they need.

    With ``--json``, so are those that choose what is printed: it prints all parts.
    """
    own = {flag: p for p in context.command.params for flag in p.opts}
    for lone, needed in NEEDED.items():
        known = [flag for flag in needed if flag in own]
        if lone in own and not any(_writes(context, own[flag]) for flag in known):
            what = "drawn" if known == ["--plot"] else "written"
            why = f"without {' or '.join(known)} nothing is {what}"
            refuse_idle(context, [own[lone].name] if known else [], why)
    if context.params.get("as_json"):
        parts = ("tables",) if context.command.name in CHOOSING else ("tables", "only")
        own_parts = [name for name in parts if name in context.params]
        refuse_idle(context, own_parts, "--json prints all parts")


def _writes(context: typer.Context, option: Any) -> bool:
    """Whether an option has a value, or its help describes what it is without one."""
    described = isinstance(option.show_default, str)
    return described or bool(context.params[option.name])


def given_options(context: typer.Context, names: Sequence[str]) -> list[str]:
    """List which of the verb's parameters ``names`` are given; KeyError: no such."""
    if unknown := {*names} - {p.name for p in context.command.params}:
        raise KeyError(f"{context.command.name} has no options {sorted(unknown)}")
    return [
        name
        for name in names
        if (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"  # a configuration file serves many runs
    ]


def refuse_idle(
    context: typer.Context,
    names: Sequence[str],
    why: str,
    *,
    instead: str = "",
) -> None:
    """Reject options that have no effect in combination with the others.

    Raises a MoetrafficError, which explains with ``why`` when the options have an
    effect, if one of the parameters ``names`` is on the command line; an ``instead``
    such as "add --best, or " is a remedy that keeps them.
    """
    spelled = {p.name: max(p.opts, key=len) for p in context.command.params}
    idle = [spelled[name] for name in given_options(context, names)]
    if idle:
        verb, them = ("is", "it") if len(idle) == 1 else ("are", "them")
        raise MoetrafficError(
            f"{why}, but {', '.join(idle)} {verb} given: {instead}leave {them} out"
        )
