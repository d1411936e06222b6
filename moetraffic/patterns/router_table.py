"""The built-in routers: the one place where their names, options and ranges stand.

The command line, the checks before a run and :mod:`moetraffic.gating` read them here.
"""

from __future__ import annotations

from collections.abc import Mapping

from .router_spec import Broken, RouterOption, RouterSpec, Setup


def _groups_fit(setup: Setup) -> list[Broken]:
    """DeepSeek's group-limited selection."""
    groups, top = setup.whole("groups"), setup.whole("top_groups")
    if setup.experts % groups:
        return [
            (
                f"the groups must divide the experts, but there are {setup.experts} "
                f"experts in {groups} groups",
                "change --router-option groups=... or --experts",
            )
        ]
    if top > groups:
        return [
            (
                f"a token's top_groups are some of the groups, but there are {groups} "
                f"groups and top_groups is {top}",
                "lower --router-option top_groups=...",
            )
        ]
    if setup.k > (reach := top * (setup.experts // groups)):
        return [
            (
                f"a token's k experts lie in its top_groups, but these hold {reach} "
                f"experts and k is {setup.k}",
                "raise --router-option top_groups=... or lower --k",
            )
        ]
    return []


def _after_is_normalized(setup: Setup) -> list[Broken]:
    """Top-k: a softmax over the chosen experts sums to 1."""
    options = setup.options
    if options["softmax"] == "after" and options["renormalize"] is False:
        return [
            (
                "a softmax over the chosen experts has the sum 1, but renormalize is "
                "false and softmax is after",
                "leave out one of them",
            )
        ]
    return []


def _tokens_divide(setup: Setup) -> list[Broken]:
    """The assertion of fairscale's Top2Gate."""
    if setup.tokens % setup.experts:
        return [
            (
                "fairscale's Top2Gate wants the tokens of a micro-batch to divide by "
                f"the experts, but there are {setup.tokens} tokens and "
                f"{setup.experts} experts",
                "change --micro-batch, --sequence or --experts",
            )
        ]
    return []


def _ranks_are_real(setup: Setup) -> list[Broken]:
    """fairscale's MOELayer sends in every forward pass."""
    if setup.virtual:
        return [
            (
                "fairscale's MOELayer is an exchange between real ranks, but training "
                "is virtual",
                "use --router fairscale-top2, its gate alone, or leave out --virtual",
            )
        ]
    return _tokens_divide(setup)


_FAIRSCALE = "fairscale 0.4.13, fairscale/nn/moe/"
_SEED = RouterOption(
    name="seed", kind=int, default=0, text="draws another assignment", least=0
)

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
                RouterOption(
                    name="jitter",
                    kind=float,
                    default=0.0,
                    text="input noise in training: times 1-jitter to 1+jitter",
                    least=0,
                    most=1,
                ),
            ),
        ),
        RouterSpec(
            name="topk",
            title="Top-k",
            text="the k most probable experts (Mixtral, Qwen)",
            source="Shazeer et al., arXiv 1701.06538; Jiang et al., arXiv 2401.04088",
            options=(
                RouterOption(
                    name="softmax",
                    kind=str,
                    default="before",
                    text="over all experts, or over the chosen",
                    choices=("before", "after"),
                ),
                RouterOption(
                    name="renormalize",
                    kind=bool,
                    default=None,
                    text="divide a token's weights by their sum; if not given, where "
                    "k > 1",
                ),
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
                RouterOption(
                    name="second",
                    kind=str,
                    default="proportional",
                    text="the next best, sent with probability 2 g2; drawn from the "
                    "softmax without the first; or the next best, always",
                    choices=("proportional", "gumbel", "always"),
                ),
                RouterOption(
                    name="weights",
                    kind=str,
                    default="chosen",
                    text="sum to 1 over the chosen experts, or over those with room",
                    choices=("chosen", "kept"),
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
                RouterOption(
                    name="score",
                    kind=str,
                    default="sigmoid",
                    text="of an expert: V3's or V2's",
                    choices=("sigmoid", "softmax"),
                ),
                RouterOption(
                    name="groups", kind=int, default=1, text="of experts", least=1
                ),
                RouterOption(
                    name="top_groups",
                    kind=int,
                    default=1,
                    text="groups that a token's experts come from",
                    least=1,
                ),
                RouterOption(
                    name="group_score",
                    kind=str,
                    default="top2",
                    text="the sum of a group's two best scores (V3), or its best (V2)",
                    choices=("top2", "max"),
                ),
                RouterOption(
                    name="bias_rate",
                    kind=float,
                    default=0.001,
                    text="step of the loss-free bias; 0 switches it off",
                    least=0,
                ),
                RouterOption(
                    name="renormalize",
                    kind=bool,
                    default=None,
                    text="divide a token's weights by their sum; if not given, where "
                    "k > 1",
                ),
                RouterOption(
                    name="scale",
                    kind=float,
                    default=1.0,
                    text="factor of the weights (V3: 2.5, V2: 16)",
                    least=1e-6,
                ),
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
                RouterOption(
                    name="score",
                    kind=str,
                    default="auto",
                    text="of the weights; auto: sigmoid where k is 1, else softmax",
                    choices=("auto", "sigmoid", "softmax"),
                ),
                RouterOption(
                    name="tolerance",
                    kind=float,
                    default=1e-4,
                    text="ends the normalization",
                    least=1e-9,
                ),
                RouterOption(
                    name="rounds",
                    kind=int,
                    default=1000,
                    text="of normalization at most",
                    least=1,
                ),
            ),
        ),
        RouterSpec(
            name="skewed",
            title="The skewed router",
            text="a stress source: Zipf popularity, drifting hot set",
            source="this library",
            options=(
                RouterOption(
                    name="exponent",
                    kind=float,
                    default=1.0,
                    text="of Zipf's law; 0 is uniform",
                    least=0,
                    most=50,
                ),
                RouterOption(
                    name="period",
                    kind=int,
                    default=50,
                    text="steps after which the hot set moves on by one expert; 0: "
                    "never",
                    least=0,
                ),
                _SEED,
            ),
        ),
    )
}
"""The built-in routers by name."""
