"""Options of a replay: one dataclass, handed to the ranks of a host as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from moetraffic.errors import ReplayError
from moetraffic.files import validate_other_than_input, validate_output
from moetraffic.spelling import check_choice
from moetraffic.trace.what_if.rescale import Scaling
from moetraffic.units import bytes_per_second

from .pace import Pace
from .plan.background import layout_options

BUILT_IN = ("gloo", "gloo-duplex", "nccl")
DEPTHS = ("full", "none")

LONGEST_S = 7 * 86_400.0
"""Longest timeout that is accepted, in seconds: one week."""

OWN = ("trace", "out", "force", "capacity", "topology")
"""Options whose values may differ between ranks."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a replay: trace, backend, ranks, pace, verification and outputs."""

    trace: Path
    out: Path | None = None  # trace to write; None for none
    force: bool = False  # overwrite ``out``
    backend: str = "gloo"
    # ---- operations ----
    iterations: range | None = None  # None for all
    layers: tuple[int, ...] | None = None  # of operations that have one; None for all
    dense: bool = True  # also replay operations other than all-to-alls
    scaling: Scaling = field(default_factory=Scaling)  # other ranks, other bytes
    background: str = ""  # layout of traffic added to each iteration; "" for none
    model: str = ""  # preset of the background traffic
    # ---- execution ----
    pace: Pace = field(default_factory=Pace)
    verify: str = "full"  # of DEPTHS: bytes checked before the timed pass
    repeat: int = 1  # timed passes (runs)
    pairs: int = 0  # of passes with and without background traffic
    ports: bool = False  # measure the ranks' ports before
    timeout_s: float = 60.0  # longest time of an operation
    start_timeout_s: float = 300.0  # longest time until all ranks are ready
    # ---- baselines ----
    capacity: str | None = None  # of a rank's link: "400Gbps"
    topology: str | None = None  # a name, or a JSON file, of moetraffic.fabric.named

    def __post_init__(self) -> None:
        layout_options(self.background, self.model)
        check_choice("a verification", self.verify, DEPTHS, ReplayError)
        if self.pairs == 1:
            raise ReplayError(
                "an interval needs 2 pairs of passes or more, but --pairs is 1: raise "
                "it, or leave it out"
            )
        if self.capacity is not None:
            bytes_per_second(self.capacity)
        for option, seconds in (
            ("timeout", self.timeout_s),
            ("start-timeout", self.start_timeout_s),
        ):
            if not 0 < seconds <= LONGEST_S:  # NaN is neither
                raise ReplayError(
                    f"the {option.replace('-', ' ')} must be above 0 s and at most "
                    f"{LONGEST_S:.0f} s, but is {seconds:g}: give --{option} a number "
                    "between these"
                )
        if self.repeat < 1:
            raise ReplayError(
                "a replay has 1 timed pass or more, but --repeat is "
                f"{self.repeat}: raise it"
            )

    @property
    def verifies(self) -> bool:
        """Whether a verification is the first pass."""
        return self.verify == "full"

    @property
    def passes(self) -> int:
        """Number of passes of a rank through its program, without those of pairs."""
        return self.repeat + self.verifies

    @property
    def silence_s(self) -> float:
        """Time without a sign of life after which a rank counts as hung, s.

        The timeouts of the rank itself expire earlier.
        """
        return 1.5 * self.timeout_s + 2.0

    @property
    def grace_s(self) -> float:
        """Time that the other ranks have to end after one has failed, s."""
        return min(3.0, self.timeout_s)

    def common(self) -> dict[str, str]:
        """Options that must be the same on all ranks, by name.

        File names may differ between hosts, and only rank 0 evaluates the times.
        """
        names = (f.name for f in fields(self) if f.name not in OWN)
        return {name: str(getattr(self, name)) for name in names}

    def check_outputs(self) -> None:
        """Check, before any work, that the output can be written."""
        if self.out is not None:
            validate_other_than_input(self.trace, self.out, error=ReplayError)
            validate_output(self.out, force=self.force, error=ReplayError)

    def to_json(self) -> str:
        """Format as JSON, for the ranks of this host."""
        values = asdict(self)
        if self.iterations is not None:
            values["iterations"] = self.iterations.start, self.iterations.stop
        return json.dumps(values, default=str)

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Read what :meth:`to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        scaling, pace = values.pop("scaling"), values.pop("pace")
        scaling["factor"] = Fraction(scaling["factor"])
        for name in ("trace", "out"):
            values[name] = None if values[name] is None else Path(values[name])
        for name, make in (("iterations", lambda v: range(*v)), ("layers", tuple)):
            values[name] = None if values[name] is None else make(values[name])
        return cls(**values, scaling=Scaling(**scaling), pace=Pace(**pace))


def check_backend(name: str, *, here: bool = False) -> None:
    """Check that there is a backend of this name, built in or registered with torch.

    ``here``: and that this host has a GPU if it needs one.  Packages register theirs
    when torch is imported (entry point ``torch.backends``).
    """
    if name not in BUILT_IN:
        import torch.distributed as dist  # slow import

        others = set(dist.Backend.backend_list) - {"undefined"}
        names = (*BUILT_IN, *sorted(others - set(BUILT_IN)))
        check_choice("a backend", name, names, ReplayError)
    if here and on_gpu(name):
        import torch  # slow import

        if not torch.cuda.is_available():
            raise ReplayError(
                f"the backend {name} needs a CUDA device for each rank of a host, but "
                f"torch {torch.__version__} sees none: use --backend gloo"
            )


def on_gpu(name: str) -> bool:
    """Whether a backend has its buffers on a CUDA device: it has none on the host."""
    if name in BUILT_IN:
        return name == "nccl"
    import torch.distributed as dist  # slow import

    return "cpu" not in dist.Backend.backend_capability[name]
