"""Mixtures of experts, published and tiny ones, as data.

Each is the exact published shape.  Where a source leaves something open, the comment
above it says what was assumed; what is not built is in ``left_out``.
"""

from __future__ import annotations

from moetraffic.patterns.routers import Gating
from moetraffic.patterns.shape import ModelShape

from .model_card import GPT, LLAMA, T5, Preset


def _dropless(k: int, *, renormalize: bool, balance: float) -> Gating:
    return Gating(
        k=k, balance=balance, z_loss=0.0, options={"renormalize": renormalize}
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
            **T5,
        ),
        gating=Gating(
            router="switch", k=1, dispatch="padded", capacity_factor=1.25, z_loss=0.0
        ),
        source=f"arXiv 2101.03961; google/switch-base-{experts}, config.json",
        published=published,
        remark="the published count is that of the released checkpoint",
    )


SPARSE = (
    # Ours, to try things in seconds: GPT-2's shape without biases.
    Preset(model=ModelShape(), source="this library"),
    # Mixtral's building blocks.
    Preset(
        model=ModelShape(name="tiny-llama", kv_heads=2, head_size=32, ffn=256, **LLAMA),
        gating=_dropless(2, renormalize=True, balance=0.02),
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
            **LLAMA,
        ),
        gating=Gating(
            router="deepseek",
            k=4,
            balance=0.0001,
            balance_scope="sequence",
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
            **T5,
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
            **{**GPT, "experts": 16},
        ),
        source="APNet'24, 'Understanding Communication Characteristics ...': the size",
        published=760_000_000,
        remark="assumed: all but the total, read as that of all parameters",
    ),
    _switch_base(8, 619_339_008),
    _switch_base(64, 3_790_748_928),
    _switch_base(128, 7_415_217_408),
    # Lepikhin et al., arXiv 2006.16668, section 4: MoE(2048E, 36L), model
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
        source="arXiv 2006.16668, section 4: MoE(2048E, 36L)",
        published=600_000_000_000,
        within=0.04,
        remark="18 MoE layers x 2048 experts x 2 x 1024 x 8192 alone are 618.5e9; the "
        "paper states its smaller models some 3% below their own sizes too",
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
            **LLAMA,
        ),
        gating=_dropless(2, renormalize=True, balance=0.02),
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
            **LLAMA,
        ),
        gating=_dropless(4, renormalize=False, balance=0.001),
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
            **LLAMA,
        ),
        gating=_dropless(8, renormalize=True, balance=0.001),
        micro_batch=1,
        source="arXiv 2505.09388, table 2; Qwen/Qwen3-30B-A3B, config.json",
        published=30_532_122_624,
    ),
    # Qwen3, the same table; Qwen/Qwen3-235B-A22B, config.json.
    Preset(
        model=ModelShape(
            name="qwen3-235b-a22b",
            layers=94,
            hidden=4096,
            heads=64,
            kv_heads=4,
            head_size=128,
            qk_norm=True,
            expert_ffn=1536,
            ffn=12_288,
            experts=128,
            sequence=4096,
            vocabulary=151_936,
            rotary_base=1e6,
            **LLAMA,
        ),
        gating=_dropless(8, renormalize=True, balance=0.001),
        micro_batch=1,
        source="arXiv 2505.09388, table 2; Qwen/Qwen3-235B-A22B, config.json",
        published=235_093_634_560,
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
            **LLAMA,
        ),
        gating=_dropless(6, renormalize=False, balance=0.003),
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
            **LLAMA,
        ),
        gating=Gating(
            router="deepseek",
            k=8,
            balance=0.0001,
            balance_scope="sequence",
            z_loss=0.0,
            options={"groups": 8, "top_groups": 4, "scale": 2.5},
        ),
        micro_batch=1,
        source="arXiv 2412.19437, section 4.2; deepseek-ai/DeepSeek-V3, config.json",
        published=685_000_000_000,
        left_out={"multi-token prediction": 14_000_000_000},
        remark="671e9 without the module that predicts a second token",
    ),
)
