"""How a model is trained, and what a lossy network drops: settings and their rules."""

from __future__ import annotations

from dataclasses import dataclass

from .rules import Rule, one_of

DTYPES = ("float32", "float64", "bfloat16")
"""Element types of parameters and activations."""

DEVICES = ("cpu", "cuda")

SITES = ("dispatch", "combine", "dispatch_grad", "combine_grad", "gradient_sync")
"""Exchanges that can lose data: a MoE layer's four, and the gradients' all-reduce."""

PATTERNS = ("packets", "messages", "lowest_weight")
"""Independent packets, whole messages between two ranks, or the token copies of the
lowest gate weight."""


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

    @property
    def order_seed(self) -> int:
        """Seed of everything random but the initialization: data, noise, packet loss.

        Runs that differ in this alone are reruns of one another.
        """
        return self.seed if self.data_seed is None else self.data_seed


TRAINING_RULES: tuple[Rule, ...] = (
    one_of("device", DEVICES, "the device"),
    one_of("dtype", DTYPES, "the dtype"),
    (
        lambda t: t.precision and (t.precision, t.dtype) != ("bfloat16", "float32"),
        "the precision is empty (as dtype), or bfloat16 beside dtype float32, but "
        "precision is {0.precision!r} and dtype is {0.dtype!r}: "
        "change --precision or --dtype",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Dropping:
    """What a lossy network drops; it arrives as zeros.

    A message is what one rank sends another in one exchange; a rank's own tokens do
    not cross the network and are never dropped.
    """

    site: str = "combine"  # one of SITES
    pattern: str = "packets"  # one of PATTERNS
    share: float = 0.0  # of the bytes that cross the network, 0 to below 1
    compensate: bool = False  # what arrives is multiplied by 1 / (1 - share)
    packet_bytes: int = 4096  # payload of a packet; RoCE's largest MTU


DROPPING_RULES: tuple[Rule, ...] = (
    one_of("site", SITES, "the site"),
    one_of("pattern", PATTERNS, "the pattern"),
    (
        lambda d: not 0 <= d.share < 1,
        "the share dropped is at least 0 and below 1, but is {0.share}: "
        "give percentages below 100",
    ),
    (
        lambda d: d.packet_bytes < 64,
        "a packet has at least 64 bytes, but packet-bytes is {0.packet_bytes}: "
        "raise --packet-bytes",
    ),
    (
        lambda d: (d.site, d.pattern) == ("gradient_sync", "lowest_weight"),
        "gate weights order token copies, but gradient_sync sends gradients: "
        "choose another --pattern",
    ),
)
