"""Programs that train in another way than by one loss and one optimizer."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.capture.shapes.truth import Truth

from .evaluation import hugging_face
from .pieces import (
    EVERY_OTHER,
    HIDDEN,
    Layer,
    Normed,
    data,
    evaluate,
    loss_of,
    stack,
    synchronize,
    train,
)

OTHER = 100
"""Layers of a second model are numbered from here."""


def trainer_saving(truth: Truth) -> None:
    """transformers' Trainer that saves, and evaluates before training and at saves."""
    hugging_face(
        truth,
        max_steps=9,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=3,
        eval_on_start=True,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        max_grad_norm=0.1,
    )


def data_parallel(truth: Truth) -> None:
    """DDP around the model, accumulation with no_sync, validation every 3 steps."""
    truth.lifted = EVERY_OTHER
    inner = stack(truth, 2)
    experts = [n for n, _ in inner.named_parameters() if ".experts." in n]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, experts)
    module = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step in range(7):
        for m in range(3):
            with module.no_sync() if m < 2 else nullcontext():
                tokens = data(truth, step, m)
                loss = loss_of(module(tokens), tokens)
                (loss / 3).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        truth.stepped(loss.item())
        if step % 3 == 2:
            evaluate(truth, module, data(truth, 800 + step), data(truth, 900 + step))


def adversarial(truth: Truth) -> None:
    """A generator and a discriminator, whose optimizers take turns."""
    truth.lifted, truth.renumbered = EVERY_OTHER, True
    generator = stack(truth, 2)
    critic = nn.Sequential(
        *(Normed(Layer(truth, OTHER + n)) for n in range(2)), nn.Linear(HIDDEN, 1)
    )
    optimizers = [torch.optim.Adam(m.parameters(), 1e-3) for m in (critic, generator)]
    for step in range(8):
        noise, real = data(truth, step), data(truth, 500 + step)
        if step % 2 == 0:
            truth.aside = True
            with torch.no_grad():
                made = generator(noise)
            truth.aside = False
            loss = (critic(made) - critic(real)).mean()
        else:
            loss = -critic(generator(noise)).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        trained = generator if step % 2 else critic
        synchronize(trained)
        optimizers[step % 2].step()
        truth.stepped(loss.item())


def clipped(truth: Truth) -> None:
    """The program makes no optimizer step where the norm of the gradients is NaN."""
    truth.lifted = EVERY_OTHER
    module = stack(truth, 3)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step in range(8):
        tokens = data(truth, step)
        loss = loss_of(module(tokens), tokens) * (float("nan") if step == 3 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        synchronize(module)
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        finite = torch.tensor(float(norm.isfinite()))
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        if finite:
            optimizer.step()
        # nothing but the missing step marks the end of the step
        truth.stepped(loss.item(), "train" if finite else "", optimized=bool(finite))


class Half(Layer):
    """A layer that sends its rows in bfloat16."""

    def exchange(
        self, rows: Tensor, received: list[int], sent: list[int], phase: str
    ) -> Tensor:
        return super().exchange(rows.bfloat16(), received, sent, phase).float()


def mixed_precision(truth: Truth) -> None:
    """Autocast, accumulation 2, a gradient scaler that skips a step, clipping."""
    truth.lifted = EVERY_OTHER
    module = nn.Sequential(*(Normed(Half(truth, n)) for n in range(2)))
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(7):
        for m in range(2):
            tokens = data(truth, step, m)
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(module(tokens), tokens)
            scaler.scale(loss * (float("inf") if step == 4 else 1.0)).backward()
        synchronize(module)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        truth.stepped(loss.item(), "skipped" if step == 4 else "train")


def averaged_weights(truth: Truth) -> None:
    """A deep copy holds averaged weights, and is what the program evaluates."""
    truth.lifted, truth.renumbered = EVERY_OTHER, True
    module = stack(truth, 2)
    average = copy.deepcopy(module)
    for layer in average.modules():
        if isinstance(layer, Layer):
            layer.layer += OTHER
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step in range(8):
        train(truth, module, optimizer, data(truth, step))
        with torch.no_grad():
            pairs = zip(average.parameters(), module.parameters(), strict=True)
            for kept, p in pairs:
                kept.lerp_(p, 0.1)
        if step % 2:
            evaluate(truth, average, data(truth, 700 + step))


def rollouts(truth: Truth) -> None:
    """Sequences of varying length are generated, then trained on for two steps."""
    truth.lifted = EVERY_OTHER
    policy = stack(truth, 2)
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-3)
    for turn, length in enumerate([4, 7, 3, 6]):
        tokens = data(truth, turn, tokens=8)
        with torch.no_grad():
            for _ in range(length):
                tokens = torch.cat([tokens, policy(tokens)[-1:]])
        truth.stepped(kind="evaluation", optimized=False)
        for _ in range(2):
            train(truth, policy, optimizer, tokens)


def warmed_up(truth: Truth) -> None:
    """A pass before training, and evaluations in inference mode."""
    truth.lifted = EVERY_OTHER
    module = stack(truth, 2)
    module(data(truth, 99))
    truth.stepped(kind="", optimized=False)
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    for step in range(8):
        train(truth, module, optimizer, data(truth, step))
        if step in (1, 5):
            with torch.inference_mode():
                for m in range(3):
                    module(data(truth, 700 + step, m))
            truth.stepped(kind="evaluation", optimized=False)


def distilled(truth: Truth) -> None:
    """A student learns from a teacher, which has MoE layers of its own."""
    truth.lifted, truth.renumbered = EVERY_OTHER, True
    student = stack(truth, 2)
    teacher = nn.Sequential(*(Normed(Layer(truth, OTHER + n)) for n in range(3)))
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3)

    def target(tokens: Tensor) -> Tensor:
        truth.aside = True
        with torch.no_grad():
            out: Tensor = teacher(tokens)
        truth.aside = False
        return out

    for step in range(6):
        optimizer.zero_grad()
        for m in range(2):
            tokens = data(truth, step, m)
            loss = (student(tokens) - target(tokens)).square().mean()
            loss.backward()
        synchronize(student)
        optimizer.step()
        truth.stepped(loss.item())
