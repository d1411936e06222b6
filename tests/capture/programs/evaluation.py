"""Programs that evaluate between training steps, or accumulate gradients."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.capture.shapes.truth import Truth

from .pieces import EVERY_OTHER, HIDDEN, Layer, data, evaluate, stack, train


def _validated(truth: Truth, batches: dict[int, int]) -> None:
    """Train 8 steps, with validation before them and after those of ``batches``."""
    truth.lifted = EVERY_OTHER
    module = stack(truth, 2)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)

    def validate(step: int, number: int) -> None:
        evaluate(truth, module, *(data(truth, 700 + step, m) for m in range(number)))

    validate(99, 2)
    for step in range(8):
        train(truth, module, optimizer, data(truth, step))
        if step in batches:
            validate(step, batches[step])


def validation(truth: Truth) -> None:
    """Validation of 2 batches before training, and after every third step."""
    _validated(truth, {2: 2, 5: 2})


def validation_of_varying_length(truth: Truth) -> None:
    """Validation before training, and of 1, 3, 2 batches after some steps."""
    _validated(truth, {1: 1, 3: 3, 4: 2})


def accumulation_of_varying_length(truth: Truth) -> None:
    """Each step accumulates another number of micro-batches, the last one shorter."""
    truth.lifted = EVERY_OTHER
    module = stack(truth, 3)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step, number in enumerate([3, 1, 4, 2, 5, 1, 2]):
        tokens = [24] * (number - 1) + [7]
        rows = [data(truth, step, m, n) for m, n in enumerate(tokens)]
        train(truth, module, optimizer, *rows)
        if step in (2, 5):
            rows = [data(truth, 700 + step, m, 24) for m in range(2)]
            evaluate(truth, module, *rows, reduced=False)


class Sparse(nn.Module):
    """Takes the place of the MoE block of a decoder layer of transformers."""

    def __init__(self, truth: Truth, layer: int) -> None:
        super().__init__()
        self.moe = Layer(truth, layer)

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        out: Tensor = self.moe(tokens)
        return out


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, number: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 64, (number, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, n: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[n], "labels": self.ids[n]}


def mixtral(truth: Truth) -> Any:
    """Mixtral of two layers, whose experts are spread over the ranks."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=64,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = MixtralForCausalLM(config)
    for number, layer in enumerate(model.model.layers):
        layer.mlp = Sparse(truth, number)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, [n for n, _ in model.named_parameters() if ".experts." in n]
    )
    return model


def hugging_face(truth: Truth, **arguments: Any) -> None:
    """Train Mixtral with the Trainer of transformers."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    truth.lifted = EVERY_OTHER
    os.environ |= {
        "RANK": str(truth.rank),
        "LOCAL_RANK": str(truth.rank),
        "WORLD_SIZE": str(truth.world),
        "LOCAL_WORLD_SIZE": str(truth.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }

    class Logged(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            truth.stepped()

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            truth.stepped(kind="evaluation", optimized=False)

    stated = TrainingArguments(
        output_dir=str(truth.path.parent / "trainer"),
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        ddp_backend="gloo",
        disable_tqdm=True,
        seed=1,
        **arguments,
    )
    Trainer(
        model=mixtral(truth),
        args=stated,
        train_dataset=Sentences(200, 1),
        eval_dataset=Sentences(12, 2),
        callbacks=[Logged()],
    ).train()


def trainer(truth: Truth) -> None:
    """transformers' Trainer, accumulation 2, evaluation every 5 steps."""
    hugging_face(
        truth,
        max_steps=12,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="no",
    )
