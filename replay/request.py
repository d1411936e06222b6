"""Options of a replay, and their validation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from moetraffic.errors import ReplayError
from moetraffic.files import validate_other_than_input, validate_output
from moetraffic.replay.backends.requirements import on_gpu, validate_backend
from moetraffic.replay.execution.pace import ASAP, Pace
from moetraffic.replay.plan.background import (
    BackgroundPattern,
    expert_exchanges,
    pass_order,
)
from moetraffic.replay.plan.planning import make_plan
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.replay.plan.selection import FULL_VERIFICATION, Depth, Verification
from moetraffic.trace.model import ALL_TO_ALL
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling, rescale, rescaled
from moetraffic.units import byte_size, bytes_per_second

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
"""Element types of reductions, as torch names them."""

MOST_RUNS = 1000
"""Largest number of timed passes; more are taken for a typing error."""

LONGEST_S = 7 * 86_400.0
"""Longest timeout that is accepted, in seconds: one week."""

_OWN = frozenset(
    {
        *("trace", "out", "force"),
        *("capacity", "topology", "bandwidth", "fidelity"),
    }
)
"""Names of options whose values may differ between ranks."""


def silence_s(timeout_s: float) -> float:
    """Return the time without a heartbeat after which a rank counts as hung, s.

    The timeouts of the rank itself expire earlier.
    """
    return 1.5 * timeout_s + 2.0


def grace_s(timeout_s: float) -> float:
    """Return the time that the other ranks have to end after one has failed, s."""
    return min(3.0, timeout_s)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of a replay: trace, backend, ranks, pace, verification and outputs."""

    trace: Path
    out: Path | None = None  # trace to write; None for none
    backend: str = "gloo"
    iterations: range | None = None  # None for all
    verify: Verification = FULL_VERIFICATION  # in a pass before the timed one
    timeout_s: float = 60.0  # longest time of an operation
    start_timeout_s: float = 300.0  # longest time until all ranks are ready
    force: bool = False  # overwrite ``out``
    # execution
    dense: bool = True  # also replay operations other than all-to-alls
    pace: Pace = ASAP
    dtype: str = "float32"  # in which reductions compute
    warm_up: int = 1  # iterations that run before, untimed
    repeat: int = 1  # timed passes (runs)
    probe: bool = False  # measure the ranks' ports before
    graphs: bool = False  # an iteration as one CUDA graph
    # baselines, and files of results
    capacity: str | None = None  # of a rank's link: "400Gbps"
    topology: str | None = None  # a name, or a JSON file, of moetraffic.fabric.named
    bandwidth: Path | None = None  # a table that moetraffic bench wrote
    fidelity: Path | None = None  # JSON to write

    # ranks, bytes and background traffic
    scaling: Scaling = field(default_factory=Scaling)
    layers: tuple[int, ...] | None = (
        None  # operations without a layer are always replayed; None for all
    )
    alongside: BackgroundPattern | None = None  # background traffic of every iteration
    pairs: int = 0  # of passes with and without background traffic

    def __post_init__(self) -> None:
        if self.pairs:
            pass_order(self.pairs)
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
                f"reductions are in {', '.join(DTYPES)} after 0 or more iterations "
                f"of warm-up, but are given {self.dtype[:40]!r} and {self.warm_up}: "
                "change --dtype or --warm-up"
            )
        if self.layers == ():
            raise ReplayError(
                "one layer or more is replayed, but the list of layers is empty: name "
                "some, or leave it out for all"
            )
        if not 1 <= self.repeat <= MOST_RUNS:
            raise ReplayError(
                f"a replay has 1 to {MOST_RUNS} timed passes, but --repeat is "
                f"{self.repeat}: give a number between these"
            )

    @property
    def verifies(self) -> bool:
        """Whether a verification is the first pass."""
        return self.verify.depth is not Depth.NONE

    @property
    def passes(self) -> int:
        """Number of passes of a rank through its program."""
        return self.repeat + self.verifies

    def common_settings(self) -> Mapping[str, str]:
        """Options that must be the same on all ranks, by name.

        File names may differ between hosts, and only rank 0 evaluates the times.
        """
        return {
            f.name: str(getattr(self, f.name))
            for f in fields(self)
            if f.name not in _OWN
        }

    def arguments(self) -> list[str]:
        """Return the command-line arguments that start a rank of this replay.

        Without those of files that the process writes which starts the ranks.
        """
        span, checks = self.iterations, self.verify
        line = [str(self.trace), *self.scaling.arguments()]
        if self.alongside is not None:
            line += self.alongside.arguments()
        flags = ("graphs", "probe")
        line += [f"--{name}" for name in flags if getattr(self, name)]
        if self.out is not None and self.force:  # this process writes the other files
            line.append("--force")
        line.append("--dense" if self.dense else "--no-dense")
        values = {
            "backend": self.backend,
            "output": self.out,
            "iterations": f"{span.start}:{span.stop}" if span is not None else None,
            "layers": None if self.layers is None else ",".join(map(str, self.layers)),
            "pairs": self.pairs or None,
            "pace": self.pace,
            "gaps": self.pace.gaps.value,
            "dtype": self.dtype,
            "warm-up": self.warm_up,
            "repeat": self.repeat,
            "capacity": self.capacity,
            "topology": self.topology,
            "bandwidth": self.bandwidth,
            "verify": checks.depth.value,
            "sample": checks.share,
            "sample-seed": checks.seed,
            "timeout": self.timeout_s,
            "start-timeout": self.start_timeout_s,
        }
        for option, value in values.items():
            if value is not None:
                line += [f"--{option}", str(value)]
        return line

    def rescaled(self, trace: Trace) -> Trace:
        """Return the trace that is replayed: on other ranks or with other bytes."""
        return rescale(trace, self.scaling)

    def plan(
        self,
        trace: Trace,
        *,
        world: int | None = None,
        ranks: Collection[int] | None = None,
    ) -> Plan:
        """Make the replay plan of a trace, rescaled, with these options.

        Its occurrences are those of :meth:`rescaled`.  Only a plan with the program of
        rank 0, whose notes are shown, compares a dispatcher's bytes with the captured
        ones, which is another pass over these.

        Raises
        ------
        MoetrafficError
            If the replay cannot be planned with these options.
        """
        replayed, ledger = trace, None
        if self.scaling:
            replayed, ledger = rescaled(trace, self.scaling)
        ranks_of = replayed.meta.world
        if ledger is not None and world not in (None, ranks_of):
            raise ReplayError(
                f"{trace.name}, mapped to other ranks or bytes, takes {ranks_of}, "
                f"but there are {world} ranks: start {ranks_of} (--nproc {ranks_of})"
            )
        background = None
        if self.alongside is not None:
            background = self.alongside.traffic(ranks_of)
        made = make_plan(
            replayed,
            world=world,
            ranks=ranks,
            iterations=self.iterations,
            layers=self.layers,
            dense=self.dense,
            background=background,
            # NCCL requires one order of launches on communicators that overlap
            in_common=on_gpu(self.backend)
            or (ledger is not None and ledger.in_common_order),
        )
        if ledger is not None:
            exchanges = made.occurrence[made.kind == KINDS.index(ALL_TO_ALL)]
            notes = ledger.lines(exchanges)
            if self.scaling.dispatcher and (ranks is None or 0 in ranks):
                captured, _, completed, *_ = ledger.total(exchanges)
                notes = (self._dispatched(trace, captured + completed), *notes)
            made = replace(made, notes=(*notes, *made.notes))
        if self.pairs:
            expert_exchanges(made)
        return made

    def _dispatched(self, trace: Trace, moved: int) -> str:
        """State the bytes that a dispatcher moves, and those that were captured.

        Missing records are completed in both by the same rule.
        """
        made = make_plan(
            rescale(trace, Scaling(missing=self.scaling.missing)),
            ranks=(),
            iterations=self.iterations,
            layers=self.layers,
            dense=False,
        )
        captured = int(made.total_bytes.sum())
        ratio = f" ({moved / captured:.2f}x)" if captured else ""
        completed = " and completed" * bool(self.scaling.missing)
        return (
            f"dispatcher {self.scaling.dispatcher}: {byte_size(moved)} where "
            f"{byte_size(captured)} were captured{completed}{ratio}"
        )

    def validate_outputs(self) -> None:
        """Check, before any work, that the output files can be written.

        Raises
        ------
        ReplayError
            If a file exists and ``force`` is not set, it is the trace that is
            replayed, or it cannot be written.
        """
        for path in (self.out, self.fidelity):
            if path is not None:
                validate_other_than_input(self.trace, path, error=ReplayError)
                validate_output(path, force=self.force, error=ReplayError)

    def validate_execution(self, trace: Trace) -> None:
        """Check, before any work, that the backend and pace can replay this trace.

        The host that plans need not have the GPU: :func:`validate_device` is for those
        that run ranks.

        Raises
        ------
        ReplayError
            If there is no such backend, or the trace has no times for the pace.
        """
        validate_backend(self.backend)
        self.pace.validate_source(trace, self.iterations, self.backend)

    def validate_baselines(self, ranks: int) -> None:
        """Check, before any work, that capacity, topology and bandwidth are valid.

        Raises
        ------
        MoetrafficError
            If a rate, a network or a table is invalid.
        """
        if self.capacity is not None:
            bytes_per_second(self.capacity)
        # slow imports that are rarely needed
        if self.topology is not None:
            from moetraffic.fabric import load_fabric

            load_fabric(self.topology, ranks, capacity=self.capacity)
        if self.bandwidth is not None:
            from moetraffic.patterns.bandwidth.measurements import read_table

            read_table(self.bandwidth)
