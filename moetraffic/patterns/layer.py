"""Collectives of a layer's passes, and of a model's ends, as formulas of the layout.

A pattern lists the calls of one layout, the time model sums those of many: a collective
that is added here is in the matrix, in the time and in what the verbs show.

Tensor parallelism (Shoeybi et al., arXiv 1909.08053, section 3): two matrices in a row,
one split by output and one by input, need an all-reduce in each pass, with sequence
parallelism (Korthikanti et al., arXiv 2205.05198, section 4.2.2) a gather and a
reduce-scatter instead, and the input once more for the weights' gradients.  Attention
is such a pair, and so is a feed-forward network.  Embedding, head and loss are split by
vocabulary.  Tokens go to experts in an all-to-all, and where experts are split, an
all-gather and a reduce-scatter are between (Megatron-LM, ``token_dispatcher.py``,
``MoEAlltoAllTokenDispatcher``).

Dispatchers of several levels: He et al., "FasterMoE", PPoPP 2022; Nie et al.,
"HetuMoE", arXiv 2203.14685 (two-level); DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437,
section 3.2.2 (once for each node).  :mod:`moetraffic.trace.what_if.dispatchers`
computes them from captured tokens; here the choice of experts is uniform.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from moetraffic.workload.routing import Gating
from moetraffic.workload.rules import Values

from .layout import Layout, room

TRAFFIC = ("TP", "PP", "DP", "EmbTableSync", "EP", "CP", "control")
"""Kinds of traffic; control: norms, losses, counts, of a few bytes."""


class Part(NamedTuple):
    """Calls of one collective that follow each other."""

    traffic: str  # one of TRAFFIC
    group: str  # kind of process group
    operation: str
    buffer: Values  # bytes of the whole buffer, as nccl-tests count them
    times: Values  # how many calls; 0: none
    label: str = ""
    phase: str = ""  # of an expert exchange


class Halves(NamedTuple):
    """A layer's pass up to its experts' products, of them, and behind them."""

    before: list[Part]
    experts: list[Part]
    behind: list[Part]

    @property
    def all(self) -> list[Part]:
        """All of it, in order."""
        return self.before + self.experts + self.behind


@dataclass(frozen=True)
class LayerCalls:
    """What layers and ends of a layout send, or of arrays of them.

    ``layout`` is of :meth:`~.layout.Layout.arrays`; without ``gating`` no token is
    dropped, nor do ranks exchange how many come.
    """

    layout: Layout
    gating: Gating | None = None

    # ---- a layer ---------------------------------------------------------------

    def forward(self, *, sparse: bool, crosses: bool = False) -> Halves:
        """A layer's forward pass; ``sparse``: it has experts, ``crosses``: it is of a
        decoder that attends to an encoder's tokens."""
        attention = [self._gathered("attention"), *self._context(backward=False)]
        attention += self._summed("attention")
        if not sparse:
            return Halves(attention, [], self._matrices("mlp", 1))
        before = attention + self._counts() + self._exchange("dispatch", crosses)
        behind = self._exchange("combine", crosses) + self._shared(1)
        return Halves(before, self._split_experts(crosses), behind)

    def backward(self, *, sparse: bool, crosses: bool = False) -> Halves:
        """A layer's backward pass; see :meth:`forward`."""
        # out's gradient, then the input of query, key and value, and its gradient
        attention = [self._gathered("attention"), *self._context(backward=True)]
        attention += self._matrices("attention", 1)
        if not sparse:
            return Halves(self._matrices("mlp", 2), [], attention)
        before = self._shared(2) + self._exchange("combine_grad", crosses)
        behind = self._exchange("dispatch_grad", crosses) + attention
        return Halves(before, self._split_experts(crosses), behind)

    # ---- the model's ends ------------------------------------------------------

    def embedded(self) -> list[Part]:
        """Forward: tokens become vectors, each rank adds those of its vocabulary."""
        return self._summed("embedding")

    def embedded_gradient(self) -> list[Part]:
        """Backward; without sequence parallelism a lookup needs nobody else."""
        return [self._gathered("embedding")]

    def predicted(self) -> list[Part]:
        """Forward: logits, and the vocabulary-parallel loss with its three all-reduces
        of the largest logit, the right one's and the sum of powers."""
        c, times = self.layout, 3 * self._split
        size = 4 * c.micro_batch * c.sizes.targets / c.cp
        loss = Part("TP", "tp", "all_reduce", size, times, "cross_entropy")
        return [self._gathered("head"), loss]

    def predicted_gradient(self) -> list[Part]:
        """Backward of the head."""
        return self._matrices("head", 1)

    def joined(self) -> list[Part]:
        """Forward: a token and what was computed before it are joined by a matrix split
        by output, whose result is gathered (Megatron-LM,
        ``multi_token_prediction.py``)."""
        result = Part("TP", "tp", "all_gather", self._rows, self._split, "join")
        return [self._gathered("join", width=2), result]

    def joined_gradient(self) -> list[Part]:
        """Backward: the parts of a rank's tokens are gathered, then the input again."""
        again = self._gathered("join", width=2)
        return [self._gathered("join"), again, *self._summed("join", width=2)]

    def norms(self, elements: Values, gradient: Values) -> list[Part]:
        """Gradients of ``elements`` parameters that see a rank's own tokens alone,
        ``gradient`` bytes each, once an iteration (``finalize_model_grads.py``)."""
        size, label = elements * gradient, "norm_gradient_sync"
        return [Part("TP", "tp", "all_reduce", size, self._spread, label)]

    @property
    def handed_on(self) -> Values:
        """Bytes of a micro-batch's activations between two stages."""
        c = self.layout
        split = (self._spread > 0) | (c.scatter_gather > 0)
        return self._rows / np.where(split, c.tp, 1)

    def received(self) -> list[Part]:
        """What a stage gathers that tensor ranks of another handed on in parts."""
        parts = (self.layout.scatter_gather > 0) & (self._spread == 0)
        times = self._split * parts
        return [Part("TP", "tp", "all_gather", self._rows, times, "pipeline")]

    # ---- tensor and sequence parallelism ------------------------------------------

    @cached_property
    def _split(self) -> Values:
        return (self.layout.tp > 1) * 1.0

    @cached_property
    def _spread(self) -> Values:
        return self._split * (self.layout.sequence_parallel > 0)

    @cached_property
    def _rows(self) -> Values:
        """Bytes of a micro-batch of a tensor-parallel group."""
        c, m = self.layout, self.layout.sizes
        return c.micro_batch * m.source / c.cp * m.hidden * c.element_bytes

    def _gathered(self, label: str, times: int = 1, width: int = 1) -> Part:
        """All tokens of a sequence, where each tensor rank has some."""
        size, times = width * self._rows, self._spread * times
        return Part("TP", "tp", "all_gather", size, times, label)

    def _summed(self, label: str, width: int = 1) -> list[Part]:
        """The sum over tensor ranks, or each one's tokens of it."""
        size, whole = width * self._rows, self._split - self._spread
        return [
            Part("TP", "tp", "reduce_scatter", size, self._spread, label),
            Part("TP", "tp", "all_reduce", size, whole, label),
        ]

    def _matrices(self, label: str, gathers: int) -> list[Part]:
        """A matrix split by output and one split by input; backward both the gradient
        and the input are gathered."""
        return [self._gathered(label, gathers), *self._summed(label)]

    def _shared(self, gathers: int) -> list[Part]:
        there = self.layout.sizes.shared_ffn > 0
        parts = self._matrices("shared", gathers)
        return [part._replace(times=part.times * there) for part in parts]

    # ---- context parallelism -------------------------------------------------------

    def _context(self, *, backward: bool) -> list[Part]:
        """What one attention sends so that its tokens see the whole sequence."""
        c, m = self.layout, self.layout.sizes
        if not np.any(c.cp > 1):
            return []
        element = c.micro_batch * m.source / c.cp * c.element_bytes / c.tp
        # ranks beyond the key heads hold copies of them
        heads = np.maximum(m.key_heads, c.tp * c.inner)
        query, out = m.heads * m.key_width * element, m.heads * m.value_width * element
        key, value = heads * m.key_width * element, heads * m.value_width * element
        several = c.cp > 1
        exchanged = several & (c.context == "all-to-all")
        gathered = several & (c.context == "all-gather")
        ring = several & (c.context == "ring")
        whole = (key + value) * c.cp
        # on a ring the gradients of keys and values follow them on the way back
        hops = ring * (c.cp - 1) * (2 if backward else 1)

        def part(operation: str, size: Values, times: Values) -> Part:
            return Part("CP", "cp", operation, size, times * 1.0, "context")

        asked = [part("all_to_all", size, exchanged) for size in (query, key, value)]
        moved = [part("send_recv", key + value, hops)]
        moved += [part("all_gather", whole, gathered)]
        if not backward:
            return [*asked, *moved, part("all_to_all", out, exchanged)]
        moved += [part("reduce_scatter", whole, gathered)]
        return [part("all_to_all", out, exchanged), *moved, *asked]

    # ---- experts ---------------------------------------------------------------

    @property
    def _counted(self) -> bool:
        """Whether ranks exchange how many copies will come."""
        return self.gating is not None and self.gating.dispatch != "padded"

    def _counts(self) -> list[Part]:
        """How many copies will come."""
        ranks = self.layout.expert_tp * self.layout.ep
        if not self._counted:
            return []
        size, label = 8 * self.layout.sizes.experts * ranks, "count_exchange"
        times = (ranks > 1) * 1.0
        return [Part("control", "etp_ep", "all_gather", size, times, label)]

    def _exchange(self, phase: str, crosses: bool) -> list[Part]:
        """A token exchange, in levels in the order of the dispatch or the reverse.

        What is combined has the elements of activations, and the gradient of what is
        combined goes out as tokens do (DeepSeek-V3, arXiv 2412.19437, section 3.3.2).
        """
        c = self.layout
        out = phase in ("dispatch", "combine_grad")
        size = self._exchanged[crosses, out]
        plain = (c.ep > 1) & (c.dispatcher == "plain")
        levels = [("ep", size, plain)]
        if np.any(c.dispatcher != "plain"):
            copies = self._copies[crosses]
            row = c.row_bytes(c.sizes.hidden, dispatched=out)
            node, rank = (np.round(copies * n) * row for n in forwarded(c))
            within = (c.ep > 1) & (c.near > 1)
            across = (c.ep > c.near) & (c.dispatcher != "plain")
            levels += [
                ("ep_within", size, within & (c.dispatcher == "two-level")),
                ("ep_across", node, across),
                ("ep_within", rank, within & (c.dispatcher == "deduplicated")),
            ]
        parts = [
            Part("EP", group, "all_to_all", size, there * 1.0, phase=phase)
            for group, size, there in levels
        ]
        return parts if out else parts[::-1]

    def _split_experts(self, crosses: bool) -> list[Part]:
        """Tensor ranks of an expert see all copies of all of them."""
        ranks = self.layout.expert_tp
        times = (ranks > 1) * 1.0
        gathered, scattered = (self._exchanged[crosses, out] for out in (True, False))
        return [
            Part("TP", "etp", "all_gather", gathered * ranks, times, "experts"),
            Part("TP", "etp", "reduce_scatter", scattered * ranks, times, "experts"),
        ]

    @cached_property
    def _copies(self) -> tuple[Values, Values]:
        """Token copies of a rank, by whether of a decoder behind an encoder."""
        c, gating, copies = self.layout, self.gating, []
        for tokens in (c.sizes.source, c.sizes.targets):
            routed = c.copies(tokens)
            if gating and gating.dispatch == "dropped":
                most = room(routed, c.sizes.experts, gating.capacity_factor)
                routed = np.minimum(routed, most)
            copies.append(routed)
        return copies[0], copies[1]

    @cached_property
    def _exchanged(self) -> dict[tuple[bool, bool], Values]:
        """Bytes that a rank exchanges, by whether of a decoder behind an encoder, and
        whether they go to experts."""
        c = self.layout
        return {
            (crosses, out): self._copies[crosses]
            * c.row_bytes(c.sizes.hidden, dispatched=out)
            for crosses in (False, True)
            for out in (False, True)
        }


def distinct(k: Values, experts: Values, parts: Values) -> Values:
    """Expected number of equal parts of some experts in which a token has an expert.

    Of k distinct experts, equally likely among E, a part of E/P gets none with
    probability ``C(E - E/P, k) / C(E, k)`` (hypergeometric).

    Examples
    --------
    >>> round(float(distinct(2, 4, 2)), 4)  # the second is 1 of 3 others
    1.6667
    """
    from scipy.special import gammaln  # no verb waits for it that does without

    others = experts - experts / parts
    none = np.exp(
        gammaln(np.maximum(others, 0) + 1)
        - gammaln(np.maximum(others - k, 0) + 1)
        + gammaln(np.maximum(experts - k, 0) + 1)
        - gammaln(experts + 1)
    )
    return parts * (1 - np.where(others >= k, none, 0.0))


def forwarded(c: Layout) -> tuple[Values, Values]:
    """Times that a token is sent between nodes, and from there to ranks, per copy.

    Both count what stays on the own node and rank, as all-to-alls do.  With a node
    limit the experts of a token are equally likely among those of so many nodes.
    """
    experts = np.maximum(c.sizes.experts, 1)
    nodes = c.ep / c.near
    limit = np.minimum(np.where(c.node_limit > 0, c.node_limit, nodes), nodes)
    k, chosen = np.maximum(c.k, 1), experts * limit / nodes
    once = c.dispatcher == "deduplicated"
    to_nodes = np.where(once, distinct(k, chosen, limit) / k, 1.0)
    to_ranks = np.where(once, distinct(k, chosen, limit * c.near) / k, 1.0)
    return to_nodes, to_ranks
