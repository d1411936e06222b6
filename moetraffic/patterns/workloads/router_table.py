"""The built-in routers: the one place where their names, options and ranges stand.

The command line, the checks before a run and :mod:`moetraffic.gating` read them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from moetraffic.patterns.rules import Broken, unmet

from .router_spec import RouterOption, RouterSpec, Setup


def _groups_fit(setup: Setup) -> list[Broken]:
    """DeepSeek's group-limited selection."""
    groups, top = setup.whole("groups"), setup.whole("top_groups")
    reach = top * (setup.experts // groups)
    return unmet(
        (
            setup.experts % groups == 0,
            f"the groups must divide the experts, but there are {setup.experts} "
            f"experts in {groups} groups: "
            "change --router-option groups=... or --experts",
        ),
        (
            top <= groups,
            f"a token's top_groups are some of the groups, but there are {groups} "
            f"groups and top_groups is {top}: lower --router-option top_groups=...",
        ),
        (
            setup.k <= reach,
            f"a token's k experts lie in its top_groups, but these hold {reach} "
            f"experts and k is {setup.k}: "
            "raise --router-option top_groups=... or lower --k",
        ),
    )[:1]


def _after_is_normalized(setup: Setup) -> list[Broken]:
    """Top-k: a softmax over the chosen experts sums to 1."""
    options = setup.options
    return unmet(
        (
            options["softmax"] != "after" or options["renormalize"] is not False,
            "a softmax over the chosen experts has the sum 1, but renormalize is "
            "false and softmax is after: leave out one of them",
        )
    )


def _tokens_divide(setup: Setup) -> list[Broken]:
    """The assertion of fairscale's Top2Gate."""
    return unmet(
        (
            setup.tokens % setup.experts == 0,
            "fairscale's Top2Gate wants the tokens of a micro-batch to divide by "
            f"the experts, but there are {setup.tokens} tokens and "
            f"{setup.experts} experts: change --micro-batch, --sequence or --experts",
        )
    )


def _ranks_are_real(setup: Setup) -> list[Broken]:
    """fairscale's MOELayer sends in every forward pass."""
    return unmet(
        (
            not setup.virtual,
            "fairscale's MOELayer is an exchange between real ranks, but training is "
            "virtual: use --router fairscale-top2, its gate alone, or leave out "
            "--virtual",
        )
    ) or _tokens_divide(setup)


def _number(
    name: str, default: float, text: str, least: float = -inf, most: float = inf
) -> RouterOption:
    kind = type(default)
    return RouterOption(
        name=name, kind=kind, default=default, text=text, least=least, most=most
    )


def _choice(name: str, choices: tuple[str, ...], text: str) -> RouterOption:
    """One of some words, the first where none is given."""
    return RouterOption(
        name=name, kind=str, default=choices[0], text=text, choices=choices
    )


_RENORMALIZE = RouterOption(
    name="renormalize",
    kind=bool,
    default=None,
    text="divide a token's weights by their sum; if not given, where k > 1",
)
_FAIRSCALE = "fairscale 0.4.13, fairscale/nn/moe/"
_SEED = _number("seed", 0, "draws another assignment", 0)

ROUTERS: Mapping[str, RouterSpec] = {
    spec.name: spec
    for spec in (
        RouterSpec(
            name="switch",
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
            title="Top-k",
            text="the k most probable experts (Mixtral, Qwen)",
            source="Shazeer et al., arXiv 1701.06538; Jiang et al., arXiv 2401.04088",
            options=(
                _choice(
                    "softmax",
                    ("before", "after"),
                    "over all experts, or over the chosen",
                ),
                _RENORMALIZE,
            ),
            rule=_after_is_normalized,
        ),
        RouterSpec(
            name="gshard",
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
            title="fairscale's Top2Gate",
            text="fairscale's Top2Gate in this library's layer",
            source=_FAIRSCALE + "top2gate.py",
            k=2,
            dispatch=("padded", "dropped"),
            capacity_factor=1.0,
            rule=_tokens_divide,
        ),
        RouterSpec(
            name="fairscale",
            title="fairscale's MOELayer",
            text="fairscale's MOELayer and Top2Gate as they are",
            source=_FAIRSCALE + "moe_layer.py",
            k=2,
            dispatch=("padded",),
            capacity_factor=1.0,
            rule=_ranks_are_real,
        ),
        RouterSpec(
            name="expert-choice",
            title="Expert choice",
            text="experts choose tokens, k a token on average",
            source="Zhou et al., arXiv 2202.09368",
        ),
        RouterSpec(
            name="deepseek",
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
                    "bias_rate",
                    0.001,
                    "step of the loss-free bias; 0 switches it off",
                    0,
                ),
                _RENORMALIZE,
                _number("scale", 1.0, "factor of the weights (V3: 2.5, V2: 16)", 1e-06),
            ),
            rule=_groups_fit,
        ),
        RouterSpec(
            name="hash",
            title="The hash router",
            text="a fixed random expert for each token id",
            source="Roller et al., arXiv 2106.04426",
            options=(_SEED,),
            needs_ids=True,
        ),
        RouterSpec(
            name="sinkhorn",
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
        RouterSpec(
            name="skewed",
            title="The skewed router",
            text="a stress source: Zipf popularity, drifting hot set",
            source="this library",
            options=(
                _number("exponent", 1.0, "of Zipf's law; 0 is uniform", 0, 50),
                _number(
                    "period",
                    50,
                    "steps after which the hot set moves on by one expert; 0: never",
                    0,
                ),
                _SEED,
            ),
        ),
    )
}
"""The built-in routers by name."""
