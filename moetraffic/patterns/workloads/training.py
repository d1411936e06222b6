"""How a model is trained: optimizer, batch and length of a run, and their rules."""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.patterns.rules import Broken, unmet

DTYPES = ("float32", "float64", "bfloat16")
"""Element types of parameters and activations."""

PRECISIONS = ("", "bfloat16")

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Optimizer, batch and length of a run."""

    iterations: int = 200
    micro_batch: int = 4  # sequences of a rank in one forward pass
    accumulation: int = 1  # micro-batches a step
    learning_rate: float = 1e-3
    warmup: int = 20  # iterations of linear warm-up
    weight_decay: float = 0.1
    clip: float = 1.0  # gradient norm; 0 switches clipping off
    seed: int = 0  # of the initialization, and of the rest where there is no data_seed
    data_seed: int | None = None  # of data order and routing noise; None: seed
    dtype: str = "float32"  # of parameters, their gradients and the optimizer
    precision: str = ""  # of products and of what experts are sent; empty: as dtype
    recompute: bool = False  # keep a block's input alone, compute the rest twice
    device: str = "cpu"  # one of DEVICES
    corpus: str = ""  # file, folder or glob; empty: Python's standard library
    virtual: bool = False  # all ranks' shards in one process, nothing sent
    until_steady: bool = False  # end before, when the load over experts has settled

    @property
    def order_seed(self) -> int:
        """Seed of everything random but the initialization: data, noise, packet loss.

        Runs that differ in this alone are reruns of one another.
        """
        return self.seed if self.data_seed is None else self.data_seed


def broken_rules(training: Training) -> list[Broken]:
    """The rules that a training breaks by itself; ranges are :mod:`.limits`'."""
    t = training
    return unmet(
        (
            t.device in DEVICES,
            f"the device is {' or '.join(DEVICES)}, not {t.device!r}: see --device",
        ),
        (
            t.dtype in DTYPES,
            f"the dtype is one of {', '.join(DTYPES)}, not {t.dtype!r}: see --dtype",
        ),
        (
            not t.precision or (t.precision in PRECISIONS and t.dtype == "float32"),
            "the precision is empty (as dtype), or bfloat16 beside dtype float32, but "
            f"precision is {t.precision!r} and dtype is {t.dtype!r}: "
            "change --precision or --dtype",
        ),
    )
