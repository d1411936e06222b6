"""What can be said of a router before it exists: its options and its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from moetraffic.patterns.rules import Broken

OptionValue: TypeAlias = float | int | bool | str

DISPATCH_FORMS = ("padded", "dropped", "dropless")


@dataclass(frozen=True, kw_only=True)
class RouterOption:
    """A setting that one router has."""

    name: str
    kind: type  # float, int, bool or str
    default: OptionValue | None  # None: the router decides, and text says how
    text: str  # one line
    least: float = -inf  # of a number
    most: float = inf  # of a number
    choices: tuple[str, ...] = ()  # of a text

    @property
    def rule(self) -> str:
        """What a value must be, as the end of a sentence that begins with its name."""
        if self.kind is str:
            return f"is one of {', '.join(self.choices)}"
        if self.kind is bool:
            return "is true or false"
        what = "a whole number" if self.kind is int else "a number"
        if self.least > -inf and self.most < inf:
            return f"is {what} from {self.least:g} to {self.most:g}"
        return f"is {what}" + (
            f" of at least {self.least:g}" if self.least > -inf else ""
        )

    def accepts(self, value: object) -> bool:
        """Whether a value is of the option's kind and in its range."""
        if isinstance(value, (bool, str)):
            return type(value) is self.kind and (
                isinstance(value, bool) or value in self.choices
            )
        if not isinstance(value, (int, float)) or self.kind not in (int, float):
            return False
        return (
            (self.kind is float or isinstance(value, int))
            and self.least <= value <= self.most
            and abs(value) < inf
        )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a router's own rule looks at."""

    options: Mapping[str, OptionValue | None]  # every option, defaults filled in
    k: int
    experts: int
    tokens: int  # of a micro-batch on one rank
    virtual: bool  # all ranks in one process, nothing sent

    def whole(self, name: str) -> int:
        """An option that is a whole number."""
        value = self.options[name]
        assert isinstance(value, int), name  # checked before any rule
        return value


def no_rule(setup: Setup) -> list[Broken]:
    """The rule of a router that goes with everything."""
    return []


@dataclass(frozen=True, kw_only=True)
class RouterSpec:
    """A router's name, what it can be combined with, and its options."""

    name: str
    title: str  # for sentences
    text: str  # one line, for help
    source: str
    k: int | None = None  # the one k that it has; None: any
    dispatch: tuple[str, ...] = DISPATCH_FORMS
    capacity_factor: float | None = None  # the one that it has; None: any
    options: tuple[RouterOption, ...] = ()
    needs_ids: bool = False  # routes by token ids
    rule: Callable[[Setup], list[Broken]] = no_rule

    def settled(
        self, options: Mapping[str, OptionValue]
    ) -> dict[str, OptionValue | None]:
        """Every option of this router: the given values, defaults for the rest."""
        return {o.name: options.get(o.name, o.default) for o in self.options}

    def broken_options(self, options: Mapping[str, OptionValue]) -> list[Broken]:
        """The given options that this router does not have, or not with this value."""
        mine = {option.name: option for option in self.options}
        has = f"has the options {', '.join(mine)}" if mine else "has no options"
        broken = []
        for name, value in options.items():
            if name not in mine:
                broken.append(
                    (
                        f"the router {self.name} {has}, not {name!r}",
                        "leave it out of --router-option",
                    )
                )
            elif not mine[name].accepts(value):
                broken.append(
                    (
                        f"the router {self.name}'s {name} {mine[name].rule}, but is "
                        f"{value!r}",
                        f"change --router-option {name}=...",
                    )
                )
        return broken
