"""How tokens choose experts: the routers, what each asks for, and their rules.

The command line, the checks before a run and :mod:`moetraffic.gating` read names,
options and ranges here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from math import inf
from typing import Any, TypeAlias

from .rules import Broken, Rule, broken, one_of

OptionValue: TypeAlias = float | int | bool | str

DISPATCH_FORMS = ("padded", "dropped", "dropless")
BALANCE_SCOPES = ("micro_batch", "sequence", "global")
ENTRY_POINTS = "moetraffic.routers"
"""The entry-point group under which other packages register routers."""


@dataclass(frozen=True, kw_only=True)
class Gating:
    """How tokens choose experts, and what becomes of those that do not fit."""

    router: str = "topk"  # one of ROUTERS, or an installed package's
    k: int = 2  # experts of a token; some routers have one k alone
    dispatch: str = "dropless"  # one of DISPATCH_FORMS
    # capacity = ceil(factor k T / E); dropless ignores it
    capacity_factor: float = 1.25
    balance: float = 0.01  # weight of the load-balancing loss
    balance_scope: str = "micro_batch"  # whose load it balances: one of BALANCE_SCOPES
    z_loss: float = 0.001  # weight of the router z-loss
    # what only this router has, by name
    options: Mapping[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RouterOption:
    """A setting that one router has."""

    name: str
    default: OptionValue | None  # None: the router decides, and text says how
    text: str  # one line
    kind: type = float  # float, int, bool or str
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
        what = "is a whole number" if self.kind is int else "is a number"
        if self.most < inf:
            return f"{what} from {self.least:g} to {self.most:g}"
        return what + (f" of at least {self.least:g}" if self.least > -inf else "")

    def accepts(self, value: object) -> bool:
        """Whether a value is of the option's kind and in its range."""
        if isinstance(value, str):
            return self.kind is str and value in self.choices
        if isinstance(value, bool):
            return self.kind is bool
        whole = isinstance(value, int) and self.kind in (int, float)
        if not whole and not (isinstance(value, float) and self.kind is float):
            return False
        assert isinstance(value, (int, float))
        return self.least <= value <= self.most and abs(value) < inf


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a router's own rules look at."""

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

    @property
    def groups(self) -> int:
        """Groups of experts of DeepSeek's router."""
        return self.whole("groups")

    @property
    def top_groups(self) -> int:
        """Groups that a token's experts come from."""
        return self.whole("top_groups")

    @property
    def reach(self) -> int:
        """Experts of a token's groups."""
        return self.top_groups * (self.experts // self.groups)


@dataclass(frozen=True, kw_only=True)
class RouterSpec:
    """A router's name, what it can be combined with, and its options."""

    name: str
    router: str  # "module:class" of moetraffic.gating
    title: str  # for sentences
    text: str  # one line, for help
    source: str
    k: int | None = None  # the one k that it has; None: any
    dispatch: tuple[str, ...] = DISPATCH_FORMS
    capacity_factor: float | None = None  # the one that it has; None: any
    options: tuple[RouterOption, ...] = ()
    needs_ids: bool = False  # routes by token ids
    gate: bool = True  # has a matrix of weights [E, h]
    rules: tuple[Rule, ...] = ()  # of a Setup; a later one may rely on earlier ones

    def settled(
        self, options: Mapping[str, OptionValue]
    ) -> dict[str, OptionValue | None]:
        """Every option of this router: the given values, defaults for the rest."""
        return {o.name: options.get(o.name, o.default) for o in self.options}

    def broken_options(self, options: Mapping[str, OptionValue]) -> list[Broken]:
        """The given options that this router does not have, or not with this value."""
        own = {option.name: option for option in self.options}
        has = f"has the options {', '.join(own)}" if own else "has no options"
        sentences = []
        for name, value in options.items():
            if name not in own:
                rule = f"the router {self.name} {has}, not {name!r}"
                sentences.append((rule, "leave it out of --router-option"))
            elif not own[name].accepts(value):
                rule = f"the router {self.name}'s {name} {own[name].rule}, but is "
                remedy = f"change --router-option {name}=..."
                sentences.append((f"{rule}{value!r}", remedy))
        return sentences

    def broken_rules(self, setup: Setup) -> list[Broken]:
        """The first rule that a setup breaks; later ones may rely on it."""
        return next(filter(None, (broken([rule], setup) for rule in self.rules)), [])

    def combinations(self, gating: Gating) -> list[Broken]:
        """What this router cannot be combined with."""
        t, factor, wrong = self.title, self.capacity_factor, list[Broken]()
        if self.k not in (None, gating.k):
            rule = f"{t} has k {self.k} alone, but k is {gating.k}"
            wrong.append((rule, f"set --k {self.k}"))
        if gating.dispatch not in self.dispatch:
            forms = " or ".join(self.dispatch)
            rule = f"{t} has the dispatch form {forms}, not {gating.dispatch}"
            wrong.append((rule, f"set --dispatch {self.dispatch[0]}"))
        if factor not in (None, gating.capacity_factor):
            rule = f"{t} has the capacity factor {factor:g} alone, but it is "
            rule += f"{gating.capacity_factor:g}"
            wrong.append((rule, f"set --capacity-factor {factor:g}"))
        return wrong


def known_routers() -> tuple[str, ...]:
    """Names of the built-in routers and of those that installed packages register.

    Nothing is imported: only what packages say of themselves is read.
    """
    return tuple(sorted({*ROUTERS, *entry_points(group=ENTRY_POINTS).names}))


GATING_RULES: tuple[Rule, ...] = (
    (lambda g: g.k < 1, "k must be at least 1, but is {0.k}: give --k 1 or more"),
    one_of("dispatch", DISPATCH_FORMS, "the dispatch form"),
    (
        lambda g: g.dispatch != "dropless" and not 0 < g.capacity_factor < inf,
        "the capacity factor must be above 0, but is {0.capacity_factor}: "
        "raise --capacity-factor or use --dispatch dropless",
    ),
    one_of("balance_scope", BALANCE_SCOPES),
)


def broken_rules(
    gating: Gating, *, experts: int, tokens: int, virtual: bool = False
) -> list[Broken]:
    """The rules of routing that a workload breaks, each with its remedy.

    ``experts`` are those of a MoE layer, at least 1, ``tokens`` those of a micro-batch
    on one rank, ``virtual`` whether all ranks are trained in one process.
    """
    sentences = broken(GATING_RULES, gating)
    if gating.k > experts:
        rule = "a token's k experts are distinct, but k is "
        rule += f"{gating.k} and there are {experts} experts"
        sentences.append((rule, "lower --k"))
    spec = ROUTERS.get(gating.router)
    if spec is None:
        if gating.router not in (known := known_routers()):
            rule = f"the router is one of {', '.join(known)}, not {gating.router!r}"
            remedy = "see --router, or install the package that brings it"
            sentences.append((rule, remedy))
        return sentences
    setup = Setup(
        options=spec.settled(gating.options),
        k=gating.k,
        experts=experts,
        tokens=tokens,
        virtual=virtual,
    )
    # a later rule may rely on the earlier ones
    sentences = sentences or spec.combinations(gating)
    sentences = sentences or spec.broken_options(gating.options)
    return sentences or spec.broken_rules(setup)


def _number(
    name: str, default: float, text: str, least: float = -inf, most: float = inf
) -> RouterOption:
    more: dict[str, Any] = {"least": least, "most": most, "kind": type(default)}
    return RouterOption(name=name, default=default, text=text, **more)


def _choice(name: str, choices: tuple[str, ...], text: str) -> RouterOption:
    """One of some words, the first where none is given."""
    more: dict[str, Any] = {"kind": str, "default": choices[0], "choices": choices}
    return RouterOption(name=name, text=text, **more)


_RENORMALIZE = RouterOption(
    name="renormalize",
    kind=bool,
    default=None,
    text="divide a token's weights by their sum; if not given, where k > 1",
)
_FAIRSCALE = "fairscale 0.4.13, fairscale/nn/moe/"
_SEED = _number("seed", 0, "draws another assignment", 0)
_TOKENS_DIVIDE: Rule = (
    lambda s: s.tokens % s.experts,
    "fairscale's Top2Gate wants the tokens of a micro-batch to divide by the experts, "
    "but there are {0.tokens} tokens and {0.experts} experts: change --micro-batch, "
    "--sequence or --experts",
)

_SPECS = (
    RouterSpec(
        name="switch",
        router="switch:SwitchRouter",
        title="Switch",
        text="the most probable expert",
        source="Fedus et al., arXiv 2101.03961",
        k=1,
        options=(
            _number(
                "jitter",
                0.0,
                "input noise in training: times 1-jitter to 1+jitter",
                0,
                1,
            ),
        ),
    ),
    RouterSpec(
        name="topk",
        router="topk:TopKRouter",
        title="Top-k",
        text="the k most probable experts (Mixtral, Qwen)",
        source="Shazeer et al., arXiv 1701.06538; Jiang et al., arXiv 2401.04088",
        options=(
            _choice("softmax", ("before", "after"), "over all experts, or the chosen"),
            _RENORMALIZE,
        ),
        rules=(
            (
                lambda s: (
                    s.options["softmax"] == "after"
                    and s.options["renormalize"] is False
                ),
                "a softmax over the chosen experts has the sum 1, but renormalize is "
                "false and softmax is after: leave out one of them",
            ),
        ),
    ),
    RouterSpec(
        name="gshard",
        router="gshard:GShardRouter",
        title="GShard",
        text="the best expert and a random second one",
        source="Lepikhin et al., arXiv 2006.16668, algorithm 1",
        k=2,
        options=(
            _choice(
                "second",
                ("proportional", "gumbel", "always"),
                "the next best, sent with probability 2 g2; drawn from the "
                "softmax without the first; or the next best, always",
            ),
            _choice(
                "weights",
                ("chosen", "kept"),
                "sum to 1 over the chosen experts, or over those with room",
            ),
        ),
    ),
    RouterSpec(
        name="fairscale-top2",
        router="fairscale_top2:FairscaleTop2Router",
        title="fairscale's Top2Gate",
        text="fairscale's Top2Gate in this library's layer",
        source=_FAIRSCALE + "top2gate.py",
        k=2,
        dispatch=("padded", "dropped"),
        capacity_factor=1.0,
        rules=(_TOKENS_DIVIDE,),
    ),
    RouterSpec(
        name="fairscale",
        router="fairscale_top2:FairscaleTop2Router",
        title="fairscale's MOELayer",
        text="fairscale's MOELayer and Top2Gate as they are",
        source=_FAIRSCALE + "moe_layer.py",
        k=2,
        dispatch=("padded",),
        capacity_factor=1.0,
        rules=(
            (
                lambda s: s.virtual,
                "fairscale's MOELayer is an exchange between real ranks, but training "
                "is virtual: use --router fairscale-top2, its gate alone, or leave out "
                "--virtual",
            ),
            _TOKENS_DIVIDE,
        ),
    ),
    RouterSpec(
        name="expert-choice",
        router="expert_choice:ExpertChoiceRouter",
        title="Expert choice",
        text="experts choose tokens, k a token on average",
        source="Zhou et al., arXiv 2202.09368",
    ),
    RouterSpec(
        name="deepseek",
        router="deepseek:DeepSeekRouter",
        title="DeepSeek's router",
        text="sigmoid scores, loss-free bias, experts from the best groups",
        source="DeepSeek-V3, arXiv 2412.19437; V2, arXiv 2405.04434",
        options=(
            _choice("score", ("sigmoid", "softmax"), "of an expert: V3's or V2's"),
            _number("groups", 1, "of experts", 1),
            _number("top_groups", 1, "groups that a token's experts come from", 1),
            _choice(
                "group_score",
                ("top2", "max"),
                "the sum of a group's two best scores (V3), or its best (V2)",
            ),
            _number(
                "bias_rate", 0.001, "step of the loss-free bias; 0 switches it off", 0
            ),
            _RENORMALIZE,
            _number("scale", 1.0, "factor of the weights (V3: 2.5, V2: 16)", 1e-06),
        ),
        rules=(
            (
                lambda s: s.experts % s.groups,
                "the groups must divide the experts, but there are {0.experts} experts "
                "in {0.groups} groups: change --router-option groups=... or --experts",
            ),
            (
                lambda s: s.top_groups > s.groups,
                "a token's top_groups are some of the groups, but there are {0.groups} "
                "groups and top_groups is {0.top_groups}: lower --router-option "
                "top_groups=...",
            ),
            (
                lambda s: s.k > s.reach,
                "a token's k experts lie in its top_groups, but these hold {0.reach} "
                "experts and k is {0.k}: raise --router-option top_groups=... or lower "
                "--k",
            ),
        ),
    ),
    RouterSpec(
        name="hash",
        router="hashing:HashRouter",
        title="The hash router",
        text="a fixed random expert for each token id",
        source="Roller et al., arXiv 2106.04426",
        options=(_SEED,),
        needs_ids=True,
        gate=False,
    ),
    RouterSpec(
        name="sinkhorn",
        router="sinkhorn:SinkhornRouter",
        title="Sinkhorn",
        text="a balanced assignment in training (S-BASE)",
        source="Clark et al., arXiv 2202.01169; Megatron-Core",
        options=(
            _choice(
                "score",
                ("auto", "sigmoid", "softmax"),
                "of the weights; auto: sigmoid where k is 1, else softmax",
            ),
            _number("tolerance", 0.0001, "ends the normalization", 1e-09),
            _number("rounds", 1000, "of normalization at most", 1),
        ),
    ),
)
ROUTERS: Mapping[str, RouterSpec] = {spec.name: spec for spec in _SPECS}
"""The built-in routers by name."""
