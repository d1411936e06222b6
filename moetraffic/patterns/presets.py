"""Models by name, as data: shape, routing, and what their sources say of their size.

A preset is the exact published shape.  Where a source leaves something open, the
comment above the preset says what was assumed; what is not built is in ``left_out``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moetraffic.errors import LayoutError

from .parameters import ParameterCount, parameter_count
from .routers import Gating
from .shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model by name."""

    model: ModelShape
    source: str  # of the shape: a paper's table or a published configuration
    gating: Gating = field(default_factory=Gating)  # of a dense model: not used
    micro_batch: int = 4  # sequences of a rank in one forward pass
    published: int = 0  # parameters that the source states; 0: it states none
    left_out: Mapping[str, int] = field(
        default_factory=dict
    )  # parts that the source counts and this library does not build
    within: float = 0.01  # of published: above 0.01 the remark says why
    remark: str = ""  # what was assumed, or how the published count is to be read

    @property
    def name(self) -> str:
        """What ``--model`` takes."""
        return self.model.name

    @property
    def parameters(self) -> ParameterCount:
        """The count of what is built, without ``left_out``."""
        return parameter_count(self.model, k=self.gating.k)


def preset(name: str) -> Preset:
    """The preset of a name.

    Raises
    ------
    LayoutError
        If there is none.
    """
    found = PRESETS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, PRESETS, 1)
        perhaps = f"did you mean {near[0]}, or " if near else ""
        raise LayoutError(
            f"a model is one of the presets, not {name!r}: {perhaps}see moetraffic "
            "models"
        )
    return found


# the building blocks of families
_GPT: dict[str, Any] = {"norm_bias": True, "bias": True, "experts": 0}
_LLAMA: dict[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "silu",
    "gated": True,
    "tied": False,
    "moe_every": 1,
}
_T5: dict[str, Any] = {"positions": "relative", "norm": "rms", "activation": "relu"}


def _dropless(k: int, *, renormalise: bool, balance: float) -> Gating:
    return Gating(
        k=k, balance=balance, z_loss=0.0, options={"renormalise": renormalise}
    )


def _switch_base(experts: int, published: int) -> Preset:
    # Fedus et al., arXiv 2101.03961, with T5-Base's shape: the released checkpoints
    # google/switch-base-8 ... -128 have d_model 768, d_ff 3072, 12 heads of 64, 12 + 12
    # layers, ReLU, experts in every second one.  (The paper's table 9 has Switch-Base
    # with GEGLU and d_ff 2048, which is as large: 3 x 2048 = 2 x 3072.)
    return Preset(
        model=ModelShape(
            name=f"switch-base-{experts}",
            layers=24,
            encoder_layers=12,
            hidden=768,
            heads=12,
            head_size=64,
            ffn=3072,
            sequence=512,
            target_sequence=114,
            vocabulary=32_128,
            experts=experts,
            moe_every=2,
            **_T5,
        ),
        gating=Gating(
            router="switch", k=1, dispatch="padded", capacity_factor=1.25, z_loss=0.0
        ),
        source=f"arXiv 2101.03961; google/switch-base-{experts}, config.json",
        published=published,
        remark="the published count is that of the released checkpoint",
    )


_ALL = (
    # Ours, to try things in seconds: GPT-2's shape without biases.
    Preset(model=ModelShape(), source="this library"),
    # Mixtral's building blocks.
    Preset(
        model=ModelShape(
            name="tiny-llama", kv_heads=2, head_size=32, ffn=256, **_LLAMA
        ),
        gating=_dropless(2, renormalise=True, balance=0.02),
        source="this library, after Mixtral 8x7B",
    ),
    # DeepSeek's building blocks.
    Preset(
        model=ModelShape(
            name="tiny-deepseek",
            head_size=32,
            query_rank=96,
            kv_rank=32,
            rope_size=16,
            ffn=384,
            expert_ffn=96,
            shared_ffn=96,
            experts=16,
            moe_first=1,
            **_LLAMA,
        ),
        gating=Gating(
            router="deepseek",
            k=4,
            balance=0.0001,
            z_loss=0.0,
            options={"groups": 4, "top_groups": 2, "scale": 2.5},
        ),
        source="this library, after DeepSeek-V3",
    ),
    # Switch-Base's building blocks.
    Preset(
        model=ModelShape(
            name="tiny-switch",
            encoder_layers=2,
            head_size=32,
            target_sequence=32,
            **_T5,
        ),
        gating=Gating(router="switch", k=1, dispatch="padded"),
        source="this library, after Switch-Base",
    ),
    # "Understanding Communication Characteristics of Distributed Training", APNet'24,
    # shows the traffic of "a 760M MoE model" and states nothing else of it.  Read here
    # as 760M parameters in all, GPT-2's shape and vocabulary with experts in every
    # second layer; assumed: GPT-2 small's width and heads, 16 experts (so that 8 and 16
    # ranks divide them), top-2, an untied head, 16 layers, which make 757M.  The other
    # reading, experts added to the 760M of GPT-3 Large (24 layers of 1536), has several
    # thousand million parameters.
    Preset(
        model=ModelShape(
            name="gpt-moe-760m",
            layers=16,
            hidden=768,
            heads=12,
            sequence=1024,
            vocabulary=50_257,
            tied=False,
            moe_every=2,
            **{**_GPT, "experts": 16},
        ),
        source="APNet'24, 'Understanding Communication Characteristics ...': the size",
        published=760_000_000,
        remark="assumed: all but the total, read as that of all parameters",
    ),
    _switch_base(8, 619_339_008),
    _switch_base(64, 3_790_748_928),
    _switch_base(128, 7_415_217_408),
    # Lepikhin et al., arXiv 2006.16668, table 1 and section 4: MoE(2048E, 36L), model
    # dimension 1024, feed-forward 8192, 16 heads of 128, experts in every second layer.
    # Assumed: 18 layers each in encoder and decoder, positions without parameters, a
    # tied vocabulary of 64000, sequences of 128.
    Preset(
        model=ModelShape(
            name="gshard-600b",
            layers=36,
            encoder_layers=18,
            hidden=1024,
            heads=16,
            head_size=128,
            ffn=8192,
            sequence=128,
            vocabulary=64_000,
            experts=2048,
            moe_every=2,
            positions="sinusoidal",
            norm_bias=True,
            activation="relu",
        ),
        # an expert takes 2 T / E tokens, which is a factor of 1 of its k T / E
        gating=Gating(
            router="gshard", k=2, dispatch="padded", capacity_factor=1.0, z_loss=0.0
        ),
        micro_batch=16,
        source="arXiv 2006.16668, table 1: MoE(2048E, 36L)",
        published=600_000_000_000,
        within=0.04,
        remark="18 MoE layers x 2048 experts x 2 x 1024 x 8192 alone are 618.5e9; all "
        "rows of the table are rounded some 3% below their own sizes",
    ),
    # Jiang et al., arXiv 2401.04088, table 1; mistralai/Mixtral-8x7B-v0.1, config.json.
    Preset(
        model=ModelShape(
            name="mixtral-8x7b",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            head_size=128,
            ffn=14_336,
            experts=8,
            sequence=4096,
            vocabulary=32_000,
            rotary_base=1e6,
            **_LLAMA,
        ),
        gating=_dropless(2, renormalise=True, balance=0.02),
        micro_batch=1,
        source="arXiv 2401.04088, table 1; mistralai/Mixtral-8x7B-v0.1, config.json",
        published=46_702_792_704,
    ),
    # Qwen/Qwen1.5-MoE-A2.7B, config.json: four shared experts as one of 4 x 1408, with
    # a gate.
    Preset(
        model=ModelShape(
            name="qwen1.5-moe-a2.7b",
            layers=24,
            hidden=2048,
            heads=16,
            head_size=128,
            qkv_bias=True,
            ffn=5632,
            expert_ffn=1408,
            shared_ffn=5632,
            shared_gate=True,
            experts=60,
            sequence=4096,
            vocabulary=151_936,
            rotary_base=1e6,
            **_LLAMA,
        ),
        gating=_dropless(4, renormalise=False, balance=0.001),
        micro_batch=1,
        source="Qwen/Qwen1.5-MoE-A2.7B, config.json",
        published=14_315_784_192,
    ),
    # Qwen3, arXiv 2505.09388, table 2; Qwen/Qwen3-30B-A3B, config.json.
    Preset(
        model=ModelShape(
            name="qwen3-30b-a3b",
            layers=48,
            hidden=2048,
            heads=32,
            kv_heads=4,
            head_size=128,
            qk_norm=True,
            expert_ffn=768,
            ffn=6144,
            experts=128,
            sequence=4096,
            vocabulary=151_936,
            rotary_base=1e6,
            **_LLAMA,
        ),
        gating=_dropless(8, renormalise=True, balance=0.001),
        micro_batch=1,
        source="arXiv 2505.09388, table 2; Qwen/Qwen3-30B-A3B, config.json",
        published=30_532_122_624,
    ),
    # DeepSeek-V2, arXiv 2405.04434, appendix B.1; deepseek-ai/DeepSeek-V2-Lite,
    # config.json: 64 routed experts, 2 shared ones of 1408 each, softmax scores as they
    # are, one dense layer in front.
    Preset(
        model=ModelShape(
            name="deepseek-v2-lite",
            layers=27,
            hidden=2048,
            heads=16,
            head_size=128,
            kv_rank=512,
            rope_size=64,
            value_size=128,
            ffn=10_944,
            expert_ffn=1408,
            shared_ffn=2 * 1408,
            experts=64,
            moe_first=1,
            sequence=4096,
            vocabulary=102_400,
            **_LLAMA,
        ),
        gating=_dropless(6, renormalise=False, balance=0.003),
        micro_batch=1,
        source="arXiv 2405.04434, appendix B.1; deepseek-ai/DeepSeek-V2-Lite",
        published=15_706_484_224,
    ),
    # DeepSeek-V3, arXiv 2412.19437, section 4.2; deepseek-ai/DeepSeek-V3, config.json
    # and README: 671B parameters in the main model, 14B of weights in the module that
    # predicts a second token (of which 2 x 0.9B are copies of embedding and head).
    Preset(
        model=ModelShape(
            name="deepseek-v3",
            layers=61,
            hidden=7168,
            heads=128,
            head_size=128,
            query_rank=1536,
            kv_rank=512,
            rope_size=64,
            value_size=128,
            ffn=18_432,
            expert_ffn=2048,
            shared_ffn=2048,
            experts=256,
            moe_first=3,
            sequence=4096,
            vocabulary=129_280,
            **_LLAMA,
        ),
        gating=Gating(
            router="deepseek",
            k=8,
            balance=0.0001,
            z_loss=0.0,
            options={"groups": 8, "top_groups": 4, "scale": 2.5},
        ),
        micro_batch=1,
        source="arXiv 2412.19437, section 4.2; deepseek-ai/DeepSeek-V3, config.json",
        published=685_000_000_000,
        left_out={"multi-token prediction": 14_000_000_000},
        remark="671e9 without the module that predicts a second token",
    ),
    # Radford et al. 2019, table 2; openai-community/gpt2-medium, gpt2-large, gpt2-xl.
    Preset(
        model=ModelShape(
            name="gpt2-medium",
            layers=24,
            hidden=1024,
            heads=16,
            sequence=1024,
            vocabulary=50_257,
            **_GPT,
        ),
        source="openai-community/gpt2-medium, config.json",
        published=354_823_168,
        remark="Radford et al. 2019, table 2, say 345M",
    ),
    Preset(
        model=ModelShape(
            name="gpt2-large",
            layers=36,
            hidden=1280,
            heads=20,
            sequence=1024,
            vocabulary=50_257,
            **_GPT,
        ),
        source="openai-community/gpt2-large, config.json",
        published=774_030_080,
        remark="Radford et al. 2019, table 2, say 762M",
    ),
    # The 1.5B GPT of the APNet'24 study, whose shape it does not state: GPT-2 XL's.
    Preset(
        model=ModelShape(
            name="gpt-1.5b",
            layers=48,
            hidden=1600,
            heads=25,
            sequence=1024,
            vocabulary=50_257,
            **_GPT,
        ),
        source="openai-community/gpt2-xl, config.json",
        published=1_557_611_200,
        remark="the study's 1.5B is read as GPT-2 XL, 1542M in Radford et al. 2019",
    ),
    # Brown et al., arXiv 2005.14165, table 2.1: GPT-3 Medium, which is the GPT-350M of
    # Jia's report on Megatron-LM.
    Preset(
        model=ModelShape(
            name="gpt-350m",
            layers=24,
            hidden=1024,
            heads=16,
            sequence=2048,
            vocabulary=50_257,
            **_GPT,
        ),
        source="arXiv 2005.14165, table 2.1: GPT-3 Medium",
        published=350_000_000,
        within=0.02,
        remark="the table rounds: 24 layers of 12 x 1024^2 and embeddings are 356e6",
    ),
    # The same table: GPT-3 XL.  It prints 24 heads of 128, which are not 2048; 16 are.
    Preset(
        model=ModelShape(
            name="gpt-1.3b",
            layers=24,
            hidden=2048,
            heads=16,
            sequence=2048,
            vocabulary=50_257,
            **_GPT,
        ),
        source="arXiv 2005.14165, table 2.1: GPT-3 XL",
        published=1_300_000_000,
        within=0.02,
        remark="the table has two digits: 24 layers of 12 x 2048^2 and the embeddings "
        "are 1316e6; its 24 heads of 128 are read as 16",
    ),
    # The 3B GPT of the APNet'24 study, whose shape it does not state.  Assumed: GPT-3
    # 2.7B (32 layers of 2560, 32 heads; arXiv 2005.14165, table 2.1) with 36 layers.
    Preset(
        model=ModelShape(
            name="gpt-3b",
            layers=36,
            hidden=2560,
            heads=32,
            sequence=2048,
            vocabulary=50_257,
            **_GPT,
        ),
        source="APNet'24, 'Understanding Communication Characteristics ...': the size",
        published=3_000_000_000,
        within=0.02,
        remark="assumed: all but the size, which is stated with one digit",
    ),
    # Devlin et al., arXiv 1810.04805, section 3; google-bert/bert-large-uncased.
    Preset(
        model=ModelShape(
            name="bert-large",
            layers=24,
            encoder_layers=24,
            hidden=1024,
            heads=16,
            sequence=512,
            vocabulary=30_522,
            segments=2,
            norm_place="post",
            **_GPT,
        ),
        source="arXiv 1810.04805, section 3; google-bert/bert-large-uncased",
        published=336_226_108,
        left_out={
            "pooler": 1024 * 1024 + 1024,
            "next-sentence head": 2 * 1024 + 2,
        },
        remark="the paper says 340M; the count is the checkpoint's, pre-training heads "
        "included",
    ),
    # Raffel et al., arXiv 1910.10683, section 3.7; google-t5/t5-large, config.json.
    Preset(
        model=ModelShape(
            name="t5-large",
            layers=48,
            encoder_layers=24,
            hidden=1024,
            heads=16,
            head_size=64,
            ffn=4096,
            sequence=512,
            target_sequence=114,
            vocabulary=32_128,
            experts=0,
            **_T5,
        ),
        source="arXiv 1910.10683, section 3.7; google-t5/t5-large, config.json",
        published=737_668_096,
        remark="the paper's 770M counts the embedding of 32128 x 1024 twice",
    ),
)

PRESETS: Mapping[str, Preset] = {found.name: found for found in _ALL}
"""The presets by name: tiny ones, mixtures of experts, dense models."""
