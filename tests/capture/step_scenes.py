"""Scenes of training loops whose steps are hard to find, for ``scenes.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moetraffic import capture
from moetraffic.capture import Recorder

ITERATIONS = 6
OVERFLOW = 3  # the iteration whose gradients are infinite


def boundaries(folder: Path, rank: int, layer: Any) -> dict[str, Any]:
    """Training loops one after another, each with a recorder of its own."""
    return {
        "inside": inside(folder / "inside.h5", layer(rank)),
        "thrice": thrice(folder / "thrice.h5", layer(rank)),
        "scaled": scaled(folder / "scaled.h5", layer(rank)),
        "sampled": sampled(folder, layer(rank)),
    }


def inside(path: Path, layer: Any) -> list[str]:
    """An optimizer for each parameter, which steps within the backward pass."""
    for parameter in layer.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)

        def step(p: Any, optimizer: Any = optimizer) -> None:
            dist.all_reduce(p.grad)
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    with Recorder(path) as recorder:
        for number in range(ITERATIONS):
            rows = torch.ones(8, 8, requires_grad=True)
            layer(layer(rows)).sum().backward()
            recorder.step(loss=float(number))
    return recorder.warnings


def thrice(path: Path, layer: Any) -> list[str]:
    """Three optimizer steps in what the program calls one step."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    with Recorder(path) as recorder:
        for number in range(ITERATIONS):
            for _ in range(3):
                layer(torch.ones(8, 8, requires_grad=True)).sum().backward()
                optimizer.step()
            recorder.step(loss=float(number))
    return recorder.warnings


def scaled(path: Path, layer: Any) -> list[str]:
    """A gradient scaler that skips the step of one iteration."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    with Recorder(path) as recorder:
        for number in range(ITERATIONS):
            loss = layer(torch.ones(8, 8, requires_grad=True)).sum()
            scaler.scale(loss).backward()
            for parameter in layer.parameters():
                if number == OVERFLOW:
                    parameter.grad.fill_(float("inf"))
                dist.all_reduce(parameter.grad)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            recorder.step(loss=float(number))
    return recorder.warnings


def sampled(folder: Path, layer: Any) -> list[str]:
    """Every third of 12 iterations, of which 4 to 7 are paused; once a maximum size."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    limits: dict[str, dict[str, Any]] = {
        "sampled": {"every": 3},
        "limited": {"most_bytes": 1},
    }
    warnings = []
    for name, given in limits.items():
        with Recorder(folder / f"{name}.h5", **given) as recorder:
            for number in range(12):
                if number == 4 and name == "sampled":
                    capture.pause()
                if number == 8:
                    capture.resume()
                layer(torch.ones(8, 8, requires_grad=True)).sum().backward()
                optimizer.step()
                if name == "limited":
                    recorder.step()
                    recorder.flush()
        warnings += recorder.warnings
    return warnings
