"""Callbacks of the frameworks' own trainers write a trace of what was trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from moetraffic import Trace
from moetraffic.capture import router
from moetraffic.capture.callbacks import lightning_callback, transformers_callback

EXPERTS = 4
TOKENS = 32

pytestmark = [
    pytest.mark.slow,  # the frameworks take seconds to import
    pytest.mark.filterwarnings("ignore"),
]


class Gate(nn.Module):
    """Top-1 router, which counts what it routed."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, EXPERTS)
        self.counts: list[list[int]] = []

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.scores(tokens)
        ids = scores.argmax(-1)
        self.counts.append(torch.bincount(ids.ravel(), minlength=EXPERTS).tolist())
        return scores, ids


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    undo = router(Gate, lambda inputs, output: output[1], experts=EXPERTS)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    undo()


def demand_of(path: Path, iterations: int) -> np.ndarray:
    """Token copies of each iteration and expert, summed over micro-batches."""
    total = np.zeros((iterations, EXPERTS), np.int64)
    with Trace.open(path) as trace:
        routed = trace.find(operation="routing", iterations=range(iterations))
        when = trace.occurrences.iteration[routed]
        np.add.at(total, when, trace.demand(routed)[:, 0])
    return total


def pairs(counts: list[list[int]]) -> np.ndarray:
    return np.array(counts).reshape(-1, 2, EXPERTS).sum(axis=1)


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="it is not installed")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.gate = Gate()

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            return self.gate(batch[0])[0].square().mean()

        def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
            self.gate(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def loader(batches: int) -> torch.utils.data.DataLoader:
        rows = torch.randn(batches * TOKENS, 8)
        return torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(rows), batch_size=TOKENS
        )

    module, path = Module(), tmp_path / "lightning.h5"
    lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=2,
        num_sanity_val_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[lightning_callback(path, k=1)],
        default_root_dir=str(tmp_path),
    ).fit(module, loader(6), loader(3))
    with Trace.open(path) as trace:
        # 6 batches are 3 optimizer steps; the sanity check is not recorded
        assert list(trace.steps.kind) == ["train"] * 3 + ["evaluation"] * 3
        assert np.isfinite(trace.steps.loss[:3]).all()
    counts = module.gate.counts[2:]  # after the sanity check
    np.testing.assert_array_equal(demand_of(path, 3), pairs(counts[:6]))


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="it is not installed")
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs it")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = Gate()

        def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.gate(rows)[0].square().mean()}

    rows = [{"rows": torch.randn(TOKENS, 8)} for _ in range(8)]
    model, path = Model(), tmp_path / "transformers.h5"
    transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            max_steps=4,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
        train_dataset=rows,
        callbacks=[transformers_callback(path, k=1)],
    ).train()
    with Trace.open(path) as trace:
        assert list(trace.steps.kind) == ["train"] * 4
    np.testing.assert_array_equal(demand_of(path, 4), pairs(model.gate.counts))
