"""Dense models of published studies, as data.

Each is the exact published shape; the comment above it says what was assumed.
"""

from __future__ import annotations

from moetraffic.patterns.shape import ModelShape

from .model_card import GPT, LLAMA, T5, Preset

DENSE = (
    # Radford et al. 2019, table 2; openai-community/gpt2-medium, gpt2-large, gpt2-xl.
    Preset(
        model=ModelShape(
            name="gpt2-medium",
            layers=24,
            hidden=1024,
            heads=16,
            sequence=1024,
            vocabulary=50_257,
            **GPT,
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
            **GPT,
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
            **GPT,
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
            **GPT,
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
            **GPT,
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
            **GPT,
        ),
        source="APNet'24, 'Understanding Communication Characteristics ...': the size",
        published=3_000_000_000,
        within=0.02,
        remark="assumed: all but the size, which is stated with one digit",
    ),
    # Narayanan et al., SC'21, arXiv 2104.04473, table 1: GPTs of 51,200 words.
    *(
        Preset(
            model=ModelShape(
                name=f"megatron-{size}",
                layers=layers,
                hidden=hidden,
                heads=heads,
                sequence=2048,
                vocabulary=51_200,
                **GPT,
            ),
            micro_batch=1,
            source="SC'21, arXiv 2104.04473, table 1",
            published=published,
            within=0.03,
            remark="the table rounds: its 1.7B is 1.65B by its own equation 2",
        )
        for size, layers, hidden, heads, published in (
            ("1.7b", 24, 2304, 24, 1_700_000_000),
            ("3.6b", 30, 3072, 32, 3_600_000_000),
            ("7.5b", 36, 4096, 32, 7_500_000_000),
            ("18.4b", 40, 6144, 48, 18_400_000_000),
            ("39.1b", 48, 8192, 64, 39_100_000_000),
            ("76.1b", 60, 10_240, 80, 76_100_000_000),
            ("145.6b", 80, 12_288, 96, 145_600_000_000),
            ("310.1b", 96, 16_384, 128, 310_100_000_000),
            ("530b", 105, 20_480, 128, 529_600_000_000),
            ("1t", 128, 25_600, 160, 1_008_000_000_000),
        )
    ),
    # Llama 3, arXiv 2407.21783, table 3, and the config.json of each size.
    *(
        Preset(
            model=ModelShape(
                name=f"llama-3-{size}",
                layers=layers,
                hidden=hidden,
                heads=heads,
                kv_heads=8,
                ffn=ffn,
                experts=0,
                sequence=8192,
                vocabulary=128_256,
                rotary_base=5e5,
                **LLAMA,
            ),
            micro_batch=1,
            source=f"arXiv 2407.21783, table 3; meta-llama/Llama-3.1-{size.upper()}",
            published=published,
        )
        for size, layers, hidden, heads, ffn, published in (
            ("8b", 32, 4096, 32, 14_336, 8_030_261_248),
            ("70b", 80, 8192, 64, 28_672, 70_553_706_496),
            ("405b", 126, 16_384, 128, 53_248, 405_853_388_800),
        )
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
            **GPT,
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
            **T5,
        ),
        source="arXiv 1910.10683, section 3.7; google-t5/t5-large, config.json",
        published=737_668_096,
        remark="the paper's 770M counts the embedding of 32128 x 1024 twice",
    ),
)
