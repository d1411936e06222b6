"""Conventions in which published time models differ, as inputs."""

from __future__ import annotations

from dataclasses import dataclass, fields

from moetraffic.patterns.rules import choose


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """How FLOP, volumes and the bubble are counted.

    Raises
    ------
    LayoutError
        If a choice is not one of :data:`CHOICES`.
    """

    flops: str = "layers"  # SC'21 equation 3; "parameters": 8 N/(p t) b s of APNet'24
    stage: str = "mean"  # "last": the stage that holds the head, which others wait for
    gathers: str = "megatron"  # sequence parallel: 6 all-gathers a layer; "paper": 4
    reduced: str = "held"  # what a rank holds, of the stage that sends most;
    # "mean": N/(p t); "whole": N, as APNet'24 prints it
    ends: str = "counted"  # of vocabulary-parallel ends, and norms' gradients;
    # "left-out"
    bubble: str = "with-communication"  # APNet'24; "compute": SC'21's ideal time
    zero3: str = "flat"  # a gather forward and one backward, of flat buffers;
    # "lists": DeepSpeed up to 0.5.4, one in recomputation too, of lists of tensors

    def __post_init__(self) -> None:
        for field in fields(self):
            choose(field.name, getattr(self, field.name), CHOICES[field.name])


CHOICES: dict[str, tuple[str, ...]] = {
    "flops": ("layers", "parameters"),
    "stage": ("mean", "last"),
    "gathers": ("megatron", "paper"),
    "reduced": ("held", "mean", "whole"),
    "ends": ("left-out", "counted"),
    "bubble": ("with-communication", "compute"),
    "zero3": ("flat", "lists"),
}
"""By field of Conventions, what it may be."""

APNET24 = Conventions(flops="parameters", ends="left-out", reduced="mean")
"""'Understanding Communication Characteristics of Distributed Training', APNet'24."""

SC21 = Conventions()
"""Narayanan et al., SC'21, arXiv 2104.04473."""
