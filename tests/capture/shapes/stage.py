"""Run training shapes: ``python -m tests.capture.shapes.stage FOLDER SHAPE:MODE,MODE``.

:func:`start` starts this in the environment of ``moetraffic run``.  It imports torch
once and forks the ranks of each shape, of all its modes at once, which leave in
``FOLDER/<shape>-<mode>/`` the trace or its logs, ``truth-<rank>.json``, and
``<rank>.err``.  The modes are

bare
    nothing records;
run
    the start-up hook of ``moetraffic run`` records the unmodified program;
recorder
    the program has a Recorder, and calls its ``step()``;
annotated
    it also names the layer and phase of each all-to-all.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moetraffic.capture import command
from tests.capture.programs import architectures, evaluation, recipes, structure
from tests.capture.ranks import exit_codes, fork, initialize

from . import execution, layouts, loops, schedules
from .truth import Truth

MODES = ("bare", "run", "recorder", "annotated")
PATIENCE_S = 220.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    play: Callable[[Truth], None]
    ranks: int = 2
    few: bool = False  # of the few that every test run plays
    spawned: bool = False  # mp.spawn starts the ranks

    @property
    def title(self) -> str:
        title = (self.play.__doc__ or "").split("\n")[0].rstrip(".")
        return f"{title}, ranks started by mp.spawn" if self.spawned else title


SHAPES = {
    "switch": Shape(play=loops.switch),
    "gshard": Shape(play=loops.gshard),
    "accumulation": Shape(play=loops.accumulation),
    "varying": Shape(play=loops.varying),
    "evaluation": Shape(play=loops.evaluation),
    "evaluation-beside-ddp": Shape(play=loops.evaluation_beside_ddp, few=True),
    "inference": Shape(play=loops.inference),
    "mtp": Shape(play=loops.mtp),
    "nan-loss": Shape(play=loops.nan_loss),
    "overflow": Shape(play=loops.overflow),
    "os-exit": Shape(play=loops.left),
    "two-kinds": Shape(play=loops.two_kinds),
    "optimizers-in-backward": Shape(play=loops.optimizers_in_backward),
    "overlapped": Shape(play=schedules.overlapped, few=True),
    "two-chunks": Shape(play=schedules.two_chunks),
    "1f1b": Shape(play=schedules.one_forward_one_backward, ranks=4),
    "interleaved": Shape(play=schedules.interleaved, ranks=4),
    "background-thread": Shape(play=execution.background_thread),
    "checkpoint-reentrant": Shape(play=execution.checkpoint_reentrant),
    "checkpoint-non-reentrant": Shape(play=execution.checkpoint_non_reentrant),
    "functional": Shape(play=execution.functional_collectives),
    "compiled": Shape(play=execution.compiled),
    "shared-experts": Shape(play=execution.shared_experts),
    "mesh": Shape(play=layouts.mesh, ranks=4),
    "late-groups": Shape(play=layouts.late_groups),
    "ulysses": Shape(play=layouts.ulysses),
    "dense": Shape(play=layouts.dense),
    "auto-ep": Shape(play=layouts.auto_ep),
    "spawned": Shape(play=loops.switch, spawned=True),
}

PROGRAMS = {
    "validation": Shape(play=evaluation.validation, few=True),
    "validation-varying": Shape(play=evaluation.validation_of_varying_length),
    "accumulation-varying": Shape(play=evaluation.accumulation_of_varying_length),
    "trainer": Shape(play=evaluation.trainer),
    "layer-drop": Shape(play=structure.layer_drop),
    "fully-sharded": Shape(play=structure.fully_sharded, ranks=4),
    "embeddings": Shape(play=structure.embeddings),
    "embeddings-registered": Shape(play=structure.embeddings_registered, few=True),
    "pipeline-registered": Shape(play=structure.pipeline_registered, ranks=4),
    "trainer-saving": Shape(play=recipes.trainer_saving),
    "data-parallel": Shape(play=recipes.data_parallel),
    "adversarial": Shape(play=recipes.adversarial),
    "clipped": Shape(play=recipes.clipped),
    "mixed-precision": Shape(play=recipes.mixed_precision),
    "averaged-weights": Shape(play=recipes.averaged_weights),
    "rollouts": Shape(play=recipes.rollouts),
    "warmed-up": Shape(play=recipes.warmed_up),
    "distilled": Shape(play=recipes.distilled),
    "encoder-decoder": Shape(play=architectures.encoder_decoder),
    "named-layers": Shape(play=architectures.named_layers),
    "tied-layers": Shape(play=architectures.tied_layers),
    "recomputed-blocks": Shape(play=architectures.recomputed_blocks),
    "sequence-parallel": Shape(play=architectures.sequence_parallel),
    "expert-choice": Shape(play=architectures.expert_choice),
    "no-module": Shape(play=architectures.functional),
    "gpipe": Shape(play=architectures.gpipe, ranks=4),
}
"""Ordinary programs, of which the all-to-alls alone are judged; see test_programs."""
PLAYED = SHAPES | PROGRAMS


def play(rank: int, name: str, mode: str, folder: Path) -> None:
    """Be a rank of a shape."""
    shape = PLAYED[name]
    torch.manual_seed(rank)
    os.environ["MOETRAFFIC_OUT"] = str(folder / "run.h5")
    start: Any = dist.init_process_group
    if mode != "run":
        # what the start-up hook has wrapped, if it is there
        start = getattr(start, "__wrapped__", start)
    initialize(folder / "store", rank, shape.ranks, start)
    path, annotate = folder / f"truth-{rank}.json", None
    with contextlib.ExitStack() as stack:
        stepped = None
        if mode in ("recorder", "annotated"):
            from moetraffic import Recorder, capture

            stepped = stack.enter_context(Recorder(folder / "run.h5")).step
            annotate = capture.at if mode == "annotated" else None
        truth = Truth(path, annotate=annotate, stepped=stepped)
        shape.play(truth)
    truth.save()
    dist.destroy_process_group()


def forked(rank: int, name: str, mode: str, folder: Path) -> None:
    """Be a rank, or what spawns the ranks."""
    if PLAYED[name].spawned:
        torch.multiprocessing.spawn(play, (name, mode, folder), PLAYED[name].ranks)
    else:
        play(rank, name, mode, folder)


def start(
    folder: Path,
    names: Iterable[str],
    modes: Iterable[str],
    patience_s: float = PATIENCE_S,
) -> None:
    """Play shapes in processes of their own, as ``moetraffic run`` starts them."""
    hook = command.variables(folder / "unused.h5", force=False, names={})
    asked = [f"{name}:{','.join(modes)}" for name in names]
    process = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, folder, *asked],
        env=command.environment(hook) | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[3],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        said = f"not ended after {patience_s} s"
        os.killpg(process.pid, signal.SIGKILL)  # with its ranks
    if process.wait():
        raise RuntimeError(f"{', '.join(asked)}: {said[-4000:]}")


def run(name: str, modes: Iterable[str], folder: Path) -> str:
    """Play a shape in several modes at once; what went wrong."""
    begun: dict[Path, list[int]] = {}
    for mode in modes:
        own = folder / f"{name}-{mode}"
        own.mkdir(parents=True)
        ranks = range(1 if PLAYED[name].spawned else PLAYED[name].ranks)
        begun[own] = [
            fork(partial(forked, r, name, mode, own), own / f"{r}.err") for r in ranks
        ]
    said = ""
    for own, children in begun.items():
        codes = exit_codes(children)
        if any(codes):
            errors = [error.read_text()[-3000:] for error in sorted(own.glob("*.err"))]
            said += "\n".join([f"{own.name} ended with {codes}", *errors])
    return said


def main(folder: Path, asked: list[str]) -> int:
    warnings.simplefilter("ignore")  # a fork beside threads: meant
    # what a rank of a fresh interpreter imports by itself, once for all
    for module in (
        "moetraffic.capture.attached_recorder",
        "moetraffic.trace.merge.merging",
        "torch._dynamo",
    ):
        importlib.import_module(module)
    gc.freeze()
    failed = 0
    for one in asked:
        name, modes = one.split(":")
        said = run(name, modes.split(","), folder)
        failed += bool(said)
        sys.stderr.write(said)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
