"""Baseline generators, such as uniform or frozen traffic, for comparison.

    UNIFORM     every expert as likely as any other
    IID         the run's mean shares, drawn anew for each rank and iteration
    FROZEN      the run's mean matrix, the same in each iteration
    ZIPF        popularity 1/i^s, s fitted to the mean of the ordered loads; drawn anew
    BOOTSTRAP   blocks of consecutive iterations of the run itself, in random order
    HOT_SET     a few hot experts share what the hot ones had; now and then one changes

All know the number of tokens and how many experts a token has; none but the bootstrap
knows anything of ranks' differences or of how layers hang together.  A rank routes at
most one copy of each token to an expert, so a cell never exceeds the tokens of a rank:
what a draw puts above is drawn again among the experts that have room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from moetraffic.arrays import Float64, Int32
from moetraffic.errors import AnalysisError
from moetraffic.generate.generator import Demand, block_rows
from moetraffic.generate.scenario import Scenario, scenario_of
from moetraffic.trace import Trace

Draw = Callable[[int, np.random.Generator], Int32]
"""(iteration, its own randomness) -> ``[X, R, E]`` token copies."""


class Generator(Protocol):
    """A model of traffic: sampled at any length, and at other ranks."""

    def sample(self, *, iterations: int, seed: int, ranks: int | None = None) -> Demand:
        """Sample token counts, which are drawn when they are read."""
        ...


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Sampled token counts, drawn one iteration at a time.

    Each iteration has randomness of its own, so nothing depends on the blocks.
    """

    scenario: Scenario
    iterations: int
    seed: int
    draw: Draw
    repeats_from: int = -1

    def blocks(self, rows: int = 0) -> Iterator[tuple[int, Int32]]:
        """As :meth:`~moetraffic.generate.generator.Demand.blocks` says."""
        step = block_rows(self.scenario.cells, rows)
        for first in range(0, self.iterations, step):
            last = min(first + step, self.iterations)
            drawn = [
                self.draw(at, np.random.default_rng((self.seed, at + 1)))
                for at in range(first, last)
            ]
            yield first, np.stack(drawn).astype(np.int32)


def copies(shares: Float64, scenario: Scenario, rng: np.random.Generator) -> Int32:
    """Draw each rank's token copies from expert shares common to all ranks.

    Parameters
    ----------
    shares
        ``[X, E]``, rows adding up to 1.
    scenario
        R, k and the tokens of a rank.
    rng
        Randomness.

    Returns
    -------
    int32 array ``[X, R, E]``
        Rows of k times the tokens; no cell above the tokens.  For k = 1 a
        multinomial draw; otherwise one whose excess over the tokens is drawn again.
    """
    rows = np.broadcast_to(
        shares[:, None], (len(shares), scenario.ranks, scenario.experts)
    )
    found = rng.multinomial(scenario.copies, rows)
    over = found > scenario.tokens
    while over.any():
        for at in zip(*np.nonzero(over.any(axis=2)), strict=True):
            row = np.minimum(found[at], scenario.tokens)
            room = np.where(row < scenario.tokens, np.maximum(rows[at], 1e-12), 0.0)
            lacking = scenario.copies - int(row.sum())
            found[at] = row + rng.multinomial(lacking, room / room.sum())
        over = found > scenario.tokens
    return np.asarray(found, np.int32)


def whole_numbers(amounts: Float64) -> Int32:
    """Round each row of ``[..., E]`` to whole numbers of the row's (whole) sum.

    The largest remainders are rounded up, the first of equals (Hamilton's method).

    Examples
    --------
    >>> whole_numbers(np.array([1.5, 1.25, 1.25])).tolist()
    [2, 1, 1]
    """
    floor = np.floor(amounts)
    lacking = np.rint(amounts.sum(axis=-1) - floor.sum(axis=-1))
    order = np.argsort(-(amounts - floor), axis=-1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(
        place, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1
    )
    return np.asarray(floor + (place < lacking[..., None]), np.int32)


# ---- baselines -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Baseline(ABC):
    """Base class of the baselines: the scenario and the token counts of a run."""

    scenario: Scenario
    counts: Int32  # [T, X, R, E] of the run

    rescales: ClassVar[bool] = False
    """Whether it can give another number of experts."""

    @classmethod
    def fit(cls, trace: Trace) -> Baseline:
        """Fit to a trace that contains the routing."""
        scenario, layers = scenario_of(trace)
        demand = [each.demand.read(0, len(each.iteration)) for each in layers]
        return cls(scenario=scenario, counts=np.stack(demand, axis=1))

    def sample(
        self,
        *,
        iterations: int,
        seed: int,
        ranks: int | None = None,
        experts: int | None = None,
    ) -> Demand:
        """As :meth:`Generator.sample` says; of other experts where it rescales."""
        if iterations < 1:
            raise AnalysisError(
                f"a sample has an iteration or more, but {iterations} were asked for: "
                "ask for some"
            )
        if experts not in (None, self.scenario.experts) and not self.rescales:
            raise AnalysisError(
                f"{type(self).__name__} knows the {self.scenario.experts} experts of "
                f"its trace alone, but {experts} were asked for: leave experts out"
            )
        scaled = self.scenario.scaled(ranks=ranks, experts=experts)
        rng = np.random.default_rng((seed, 0))
        draw = self._draw(scaled, iterations, rng)
        return Drawn(scenario=scaled, iterations=iterations, seed=seed, draw=draw)

    @abstractmethod
    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        """How an iteration is drawn; ``rng`` decides what the whole sample shares."""

    @property
    def load(self) -> Float64:
        """``[T, X, E]`` shares of the experts."""
        total = self.counts.sum(axis=2, dtype=np.int64)
        return np.asarray(total / np.maximum(total.sum(axis=2, keepdims=True), 1))


class Uniform(Baseline):
    """Uniform baseline: all experts are equally likely."""

    rescales = True

    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        even = np.full(
            (len(scenario.exchanges), scenario.experts), 1 / scenario.experts
        )
        return lambda _, own: copies(even, scenario, own)


class Iid(Baseline):
    """Independent baseline: every rank draws from the run's mean shares."""

    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        mean = self.load.mean(axis=0)
        return lambda _, own: copies(mean, scenario, own)


class Frozen(Baseline):
    """Frozen baseline: the run's mean matrix in each iteration."""

    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        mean = self.counts.mean(axis=0, dtype=np.float64)  # [X, R, E]
        if scenario.ranks != self.scenario.ranks:
            mean = np.repeat(mean.mean(axis=1, keepdims=True), scenario.ranks, axis=1)
        mean *= scenario.copies / np.maximum(mean.sum(axis=2, keepdims=True), 1e-12)
        fixed = whole_numbers(mean)
        return lambda _, own: fixed


class Zipf(Baseline):
    r"""Popularity :math:`\propto 1/i^s` of the i-th most popular expert.

    s is the slope of log share over log rank of the run's mean ordered loads, by least
    squares; which expert is how popular is drawn for each exchange of a sample.
    """

    rescales = True

    def exponents(self) -> Float64:
        """``[X]``, at least 0."""
        ordered = -np.sort(-self.load, axis=2).mean(axis=0)
        if ordered.shape[1] < 2:
            return np.zeros(len(ordered))
        place = np.log(np.arange(1, ordered.shape[1] + 1))
        slope = np.polyfit(place, np.log(np.maximum(ordered, 1e-6)).T, 1)[0]
        return np.asarray(np.maximum(-slope, 0.0), np.float64)

    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        place = np.arange(1, scenario.experts + 1, dtype=np.float64)
        shares = place ** -self.exponents()[:, None]
        shares = rng.permuted(shares / shares.sum(axis=1, keepdims=True), axis=1)
        return lambda _, own: copies(shares, scenario, own)


class Bootstrap(Baseline):
    """Bootstrap baseline: blocks of consecutive iterations of the run, in random order.

    Blocks have :attr:`length` iterations, all exchanges and ranks together, and begin
    anywhere (moving blocks: H. R. Kunsch, Annals of Statistics 17, 1989).  Other ranks
    are ranks of the run, drawn for each block anew: they resemble each other too much.
    """

    @property
    def length(self) -> int:
        """Iterations of a block: ``2 T^(1/3)``, as the analysis resamples."""
        total = len(self.counts)
        return min(total, 2 * int(np.ceil(total ** (1 / 3))))

    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        long = self.length
        blocks = -(-iterations // long)
        begins = rng.integers(0, len(self.counts) - long + 1, blocks)
        same = scenario.ranks == self.scenario.ranks
        chosen = [
            np.arange(scenario.ranks)
            if same
            else rng.integers(0, self.scenario.ranks, scenario.ranks)
            for _ in range(blocks)
        ]

        def draw(at: int, _: np.random.Generator) -> Int32:
            block, within = divmod(at, long)
            found: Int32 = self.counts[begins[block] + within][:, chosen[block]]
            return found

        return draw


class HotSet(Baseline):
    """Hot-set baseline: a few hot experts, one of which is replaced at random times.

    Hot is a quarter of the experts (at least one).  They share alike the mean share of
    the busiest quarter of the run, the others share the rest; each iteration each hot
    expert is replaced by one that is not with the chance at which the run's own hot set
    changes from iteration to iteration.
    """

    def _draw(
        self, scenario: Scenario, iterations: int, rng: np.random.Generator
    ) -> Draw:
        experts, hot = scenario.experts, max(1, scenario.experts // 4)
        load = self.load
        order = np.argsort(-load, axis=2, kind="stable")[..., :hot]
        held = np.take_along_axis(load, order, axis=2).sum(axis=2).mean(axis=0)  # [X]
        member = np.zeros(load.shape, bool)
        np.put_along_axis(member, order, True, axis=2)
        again = (member[1:] & member[:-1]).sum(axis=(0, 2)) / (hot * (len(load) - 1))
        exchanges = len(held)
        shares = np.empty((iterations, exchanges, experts))
        for exchange in range(exchanges):
            # names in a row of which the first are hot
            names = rng.permutation(experts)
            for at in range(iterations):
                changing = np.flatnonzero(rng.random(hot) > again[exchange])
                for place in changing.tolist():
                    if experts > hot:
                        other = int(rng.integers(hot, experts))
                        names[place], names[other] = names[other], names[place]
                rest = (1 - held[exchange]) / max(1, experts - hot)
                shares[at, exchange] = rest
                shares[at, exchange, names[:hot]] = held[exchange] / hot
        shares /= shares.sum(axis=2, keepdims=True)
        return lambda at, own: copies(shares[at], scenario, own)


BASELINES: dict[str, type[Baseline]] = {
    "uniform": Uniform,
    "iid": Iid,
    "frozen": Frozen,
    "zipf": Zipf,
    "bootstrap": Bootstrap,
    "hot-set": HotSet,
}
"""By the names that tables and options have."""
