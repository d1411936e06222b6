"""What to replay, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from moetraffic.errors import ReplayError
from moetraffic.replay.execution.background_pairs import schedule, without
from moetraffic.replay.execution.pace import ASAP, Pace
from moetraffic.replay.plan.background_pattern import BackgroundPattern
from moetraffic.replay.plan.planning import make_plan
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.plan.verification import FULL_VERIFICATION, Depth, Verification
from moetraffic.replay.scale.rescaling import Scaling
from moetraffic.trace.hdf5.durable import validate_other_than_input, validate_output
from moetraffic.trace.trace import Trace
from moetraffic.units import bytes_per_second

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
"""What sums may be of, as torch names them."""

LONGEST_S = 7 * 86_400.0
"""A week: what is longer is no deadline."""

_OWN = frozenset(
    {
        *("trace", "out", "force"),
        *("capacity", "topology", "bandwidth", "fidelity", "metrics"),
    }
)
"""Of a request: what ranks need not have in common."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to replay, and how."""

    trace: Path
    out: Path | None = None  # trace to write; None for none
    backend: str = "gloo"
    iterations: range | None = None  # None for all
    verify: Verification = FULL_VERIFICATION  # in a pass before the timed one
    timeout_s: float = 60.0  # longest time of an operation
    start_timeout_s: float = 300.0  # longest time until all ranks are ready
    force: bool = False  # overwrite ``out``
    # how it is driven
    dense: bool = True  # also what the trace holds beside all-to-alls
    pace: Pace = ASAP
    dtype: str = "float32"  # in which is added up
    warm_up: int = 0  # iterations that go before, untimed
    graphs: bool = False  # an iteration as one CUDA graph
    registered: bool = False  # buffers that NCCL reads and writes in place
    # what the times are held against, and where that is said
    capacity: str | None = None  # of a rank's link: "400Gbps"
    topology: str | None = None  # a name, or a JSON file, of moetraffic.fabric.named
    bandwidth: Path | None = None  # a table that moetraffic bench wrote
    fidelity: Path | None = None  # JSON to write
    metrics: Path | None = None  # Prometheus text file, replaced again and again

    # on which ranks, with which bytes, beside what
    scaling: Scaling = field(default_factory=Scaling)
    layers: tuple[int, ...] | None = None  # beside what belongs to none; None for all
    alongside: BackgroundPattern | None = None  # dense background of every iteration
    pairs: int = 0  # of passes with and without dense traffic; 0: not compared

    def __post_init__(self) -> None:
        if self.pairs:
            schedule(self.pairs)
        for option, seconds in (
            ("--timeout", self.timeout_s),
            ("--start-timeout", self.start_timeout_s),
        ):
            if not 0 < seconds <= LONGEST_S:  # NaN is neither
                raise ReplayError(
                    f"the {option[2:].replace('-', ' ')} must be above 0 s and at most "
                    f"{LONGEST_S:.0f} s, but is {seconds:g}: give {option} a number "
                    "between these"
                )

        if self.dtype not in DTYPES or self.warm_up < 0:
            raise ReplayError(
                f"sums are of {', '.join(DTYPES)} and warmed up for 0 or more "
                f"iterations, but are of {self.dtype[:40]!r} and for {self.warm_up}: "
                "change --dtype or --warm-up"
            )

    @property
    def silence_s(self) -> float:
        """Longest silence of a rank; its own timeouts come first, and say where."""
        return 1.5 * self.timeout_s + 2.0

    @property
    def grace_s(self) -> float:
        """Time that the other ranks have to end after one has failed."""
        return min(3.0, self.timeout_s)

    @property
    def passes(self) -> int:
        """How often a rank goes through its program."""
        return 1 if self.verify.depth is Depth.NONE else 2

    def terms(self) -> Mapping[str, str]:
        """What must be the same on all ranks, by name.

        Files may have other names on each host, and what is made of the times is rank
        0's alone.
        """
        return {
            f.name: str(getattr(self, f.name))
            for f in fields(self)
            if f.name not in _OWN
        }

    def driving(self) -> list[str]:
        """The options of the command line that say how it is driven."""
        line = ["--pace", str(self.pace), "--gaps", self.pace.gaps.value]
        line += ["--dtype", self.dtype, "--warm-up", str(self.warm_up)]
        line += [f"--{'' if self.dense else 'no-'}dense"]
        line += ["--graphs"] if self.graphs else []
        return [*line, "--registered"] if self.registered else line

    def plan(
        self,
        trace: Trace,
        *,
        world: int | None = None,
        ranks: Collection[int] | None = None,
    ) -> Plan:
        """The plan of what was asked for.

        Parameters
        ----------
        trace
            That of the request, opened.
        world, ranks
            As :func:`moetraffic.replay.plan.planning.make_plan` takes them.

        Raises
        ------
        MoetrafficError
            If there is none.
        """
        scale = self.scaling.scale(trace)
        replayed_on = trace.meta.world if scale is None else scale.world
        background = None
        if self.alongside is not None:
            background = self.alongside.traffic(replayed_on)
        made = make_plan(
            trace,
            world=world,
            ranks=ranks,
            iterations=self.iterations,
            layers=self.layers,
            dense=self.dense,
            scale=scale,
            background=background,
        )
        if self.pairs:
            without(made)
        return made

    def changes(self) -> list[str]:
        """Options of the command line that say which ranks, bytes and background."""
        line = self.scaling.arguments()
        if self.layers is not None:
            line += ["--layers", ",".join(map(str, self.layers))]
        if self.alongside is not None:
            line += self.alongside.arguments()
        if self.pairs:
            line += ["--pairs", str(self.pairs)]
        return line

    def validate_outputs(self) -> None:
        """Refuse, before any work, an output that could not be written after it.

        Raises
        ------
        ReplayError
            If the file exists and ``force`` is not set, it is the trace that is
            replayed, or nothing can be written there.
        """
        for path, force in (
            (self.out, self.force),
            (self.fidelity, self.force),
            (self.metrics, True),  # whoever reads it reads it again and again
        ):
            if path is not None:
                validate_other_than_input(self.trace, path, error=ReplayError)
                validate_output(path, force=force, error=ReplayError)

    def validate_baselines(self, ranks: int) -> None:
        """Refuse, before any work, what the times could not be held against.

        Raises
        ------
        MoetrafficError
            If a rate, a network or a table is none.
        """
        if self.capacity is not None:
            bytes_per_second(self.capacity)
        # these take long to import, and are rarely needed
        if self.topology is not None:
            from moetraffic.fabric.named import load_fabric

            load_fabric(self.topology, ranks, capacity=self.capacity)
        if self.bandwidth is not None:
            from moetraffic.patterns.measurements import read_table

            read_table(self.bandwidth)
