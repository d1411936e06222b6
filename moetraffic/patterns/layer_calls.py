"""Collectives of a layer's passes, and of a model's ends, in Megatron-LM's parallelism.

Sizes and numbers of calls are formulas of the layout, for one layout or for arrays of
them: a pattern lists the calls of one, the time model sums those of many.

Tensor parallelism (Shoeybi et al., arXiv 1909.08053, section 3): two matrices in a row,
one split by output and one by input, need an all-reduce in each pass, with sequence
parallelism (Korthikanti et al., arXiv 2205.05198, section 4.2.2) a gather and a
reduce-scatter instead, and the input once more for the weights' gradients.  Attention
is such a pair, so is a feed-forward network, and a decoder has a second attention, to
the encoder's tokens.  Embedding, head and loss are split by vocabulary.  Tokens go to
experts in an all-to-all, and where experts are split, an all-gather and a
reduce-scatter are between (Megatron-LM, ``token_dispatcher.py``,
``MoEAlltoAllTokenDispatcher``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .dispatchers import forwarded
from .layouts.configuration import Configuration, room
from .layouts.parallelism import CONTEXTS, DEDUPLICATED, TWO_LEVEL
from .values import Values, anywhere, where

if TYPE_CHECKING:
    from .workloads.routers import Gating


class Part(NamedTuple):
    """Calls of one collective that follow each other."""

    traffic: str  # TP, CP, EP, control
    group: str  # kind of process group
    operation: str
    buffer: Values  # bytes of the whole buffer, as nccl-tests count them
    times: Values  # how many calls
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


@dataclass(frozen=True, kw_only=True)
class LayerCalls:
    """What layers and ends of a configuration send, or of arrays of them."""

    config: Configuration
    gating: Gating | None = None  # None: none is dropped, nor is how many come told
    regathered: Values = 1  # 1: backward gathers a matrix's input again

    # ---- a layer ---------------------------------------------------------------

    def forward(self, *, sparse: bool, crosses: bool) -> Halves:
        """A layer's forward pass.

        Parameters
        ----------
        sparse
            Whether it has experts.
        crosses
            Whether it is of a decoder that attends to an encoder's tokens.
        """
        rows = self._target_rows if crosses else self._source_rows
        parts: list[Part] = []
        for asks in range(1 + crosses):
            parts += self._gathered(rows, "attention")
            if asks:  # keys and values are of what the encoder read
                parts += self._gathered(self._source_rows, "attention")
            parts += self._context(crosses, backward=False)
            parts += self._summed(rows, "attention")
        if not sparse:
            return Halves(parts, [], self._matrices(rows, "mlp"))
        parts += self._counts() + self._exchange("dispatch", crosses)
        behind = self._exchange("combine", crosses) + self._shared(rows, backward=False)
        return Halves(parts, self._split_experts(crosses), behind)

    def backward(self, *, sparse: bool, crosses: bool) -> Halves:
        """A layer's backward pass; see :meth:`forward`."""
        rows = self._target_rows if crosses else self._source_rows
        before: list[Part] = []
        behind: list[Part] = []
        if sparse:
            before = self._shared(rows, backward=True)
            before += self._exchange("combine_grad", crosses)
            behind = self._exchange("dispatch_grad", crosses)
        else:
            before = self._matrices_gradient(rows, "mlp")
        for asks in reversed(range(1 + crosses)):
            # out's gradient, then the input of query, key and value, and its gradient
            behind += self._gathered(rows, "attention")
            behind += self._context(crosses, backward=True)
            if asks:  # the encoder's output again, and its gradient
                behind += self._matrices(self._source_rows, "attention")
            behind += self._gathered(rows, "attention", self.regathered)
            behind += self._summed(rows, "attention")
        return Halves(before, self._split_experts(crosses) if sparse else [], behind)

    # ---- the model's ends ------------------------------------------------------

    def embedded(self) -> list[Part]:
        """Forward: tokens become vectors, each rank adds those of its vocabulary."""
        return self._summed(self._source_rows, "embedding")

    def embedded_gradient(self) -> list[Part]:
        """Backward; without sequence parallelism a lookup needs nobody else."""
        return self._gathered(self._source_rows, "embedding")

    def predicted(self) -> list[Part]:
        """Forward: logits, and the vocabulary-parallel loss with its three all-reduces
        of the largest logit, the right one's and the sum of powers."""
        head = self._gathered(self._target_rows, "head")
        times = 3 * self._split
        if not anywhere(times):
            return head
        c = self.config
        size = 4 * c.micro_batch * c.sizes.targets / c.cp
        return [
            *head,
            Part("TP", "tp", "all_reduce", size, times, "cross_entropy"),
        ]

    def predicted_gradient(self) -> list[Part]:
        """Backward of the head."""
        return self._matrices(self._target_rows, "head")

    def joined(self) -> list[Part]:
        """Forward: a token and what was computed before it are joined by a matrix split
        by output, whose result is gathered (Megatron-LM,
        ``multi_token_prediction.py``)."""
        found = self._gathered(2 * self._source_rows, "join")
        if anywhere(self._split):
            rows = self._source_rows
            found.append(Part("TP", "tp", "all_gather", rows, self._split, "join"))
        return found

    def joined_gradient(self) -> list[Part]:
        """Backward: the parts of a rank's tokens are gathered, then the input again."""
        rows = 2 * self._source_rows
        return (
            self._gathered(self._source_rows, "join")
            + self._gathered(rows, "join", self.regathered)
            + self._summed(rows, "join")
        )

    def norms(self, elements: Values, gradient: Values) -> list[Part]:
        """Gradients of ``elements`` parameters that see a rank's own tokens alone,
        ``gradient`` bytes each, once an iteration (``finalize_model_grads.py``).
        """
        if not anywhere(self._spread):
            return []
        size, label = elements * gradient, "norm_gradient_sync"
        return [Part("TP", "tp", "all_reduce", size, self._spread, label)]

    @property
    def handed_on(self) -> Values:
        """Bytes of a micro-batch's activations between two stages."""
        c = self.config
        split = (self._spread > 0) | (c.scatter_gather > 0)
        return self._source_rows / where(split, c.tp, 1)

    def received(self) -> list[Part]:
        """What a stage gathers that tensor ranks of another handed on in parts."""
        times = self._split * (self.config.scatter_gather > 0) * (self._spread == 0)
        if not anywhere(times):
            return []
        rows = self._source_rows
        return [Part("TP", "tp", "all_gather", rows, times, "pipeline")]

    # ---- tensor and sequence parallelism ------------------------------------------

    @cached_property
    def _split(self) -> Values:
        return (self.config.tp > 1) * 1.0

    @cached_property
    def _spread(self) -> Values:
        return self._split * (self.config.sequence_parallel > 0)

    @cached_property
    def _row(self) -> Values:
        """Bytes of a token's vector between layers."""
        return self.config.sizes.hidden * self.config.element_bytes

    @cached_property
    def _source_rows(self) -> Values:
        """Bytes of a micro-batch of a tensor-parallel group."""
        c = self.config
        return c.micro_batch * c.sizes.source / c.cp * self._row

    @cached_property
    def _target_rows(self) -> Values:
        c = self.config
        return c.micro_batch * c.sizes.targets / c.cp * self._row

    def _gathered(self, rows: Values, label: str, times: Values = 1) -> list[Part]:
        """All tokens of a sequence, where each tensor rank has some."""
        if not anywhere(self._spread):
            return []
        return [Part("TP", "tp", "all_gather", rows, self._spread * times, label)]

    def _summed(self, rows: Values, label: str) -> list[Part]:
        """The sum over tensor ranks, or each one's tokens of it."""
        parts = [
            Part("TP", "tp", "reduce_scatter", rows, self._spread, label),
            Part("TP", "tp", "all_reduce", rows, self._split - self._spread, label),
        ]
        return [part for part in parts if anywhere(part.times)]

    def _matrices(self, rows: Values, label: str) -> list[Part]:
        """A matrix split by output and one split by input, forward."""
        return self._gathered(rows, label) + self._summed(rows, label)

    def _matrices_gradient(self, rows: Values, label: str) -> list[Part]:
        again = self._gathered(rows, label, self.regathered)
        return self._gathered(rows, label) + again + self._summed(rows, label)

    def _shared(self, rows: Values, *, backward: bool) -> list[Part]:
        of = self._matrices_gradient if backward else self._matrices
        there = (self.config.sizes.shared_ffn > 0) * 1.0
        parts = of(rows, "shared") if anywhere(there) else []
        return [part._replace(times=part.times * there) for part in parts]

    # ---- context parallelism -------------------------------------------------------

    def _context(self, crosses: bool, *, backward: bool) -> list[Part]:
        """What one attention sends so that its tokens see the whole sequence."""
        c = self.config
        if not anywhere(c.cp > 1):
            return []
        both, whole, *asked, out = self._target_heads if crosses else self._source_heads
        exchanged = (c.inner > 1) * 1.0
        outer = c.cp / c.inner
        gathered = (outer > 1) * (c.context == CONTEXTS.index("all-gather"))
        # on a ring the gradients of keys and values follow them on the way back
        hops = (outer - 1) * where(gathered, 0.0, 2.0 if backward else 1.0)
        parts = [
            *(("cp_heads", "all_to_all", size, exchanged) for size in asked),
            ("cp_ring", "send_recv", both, hops),
            ("cp_ring", "all_gather", whole, gathered * 1.0),
            ("cp_heads", "all_to_all", out, exchanged),
        ]
        if backward:
            parts.insert(-1, ("cp_ring", "reduce_scatter", whole, gathered * 1.0))
            parts = [parts[-1], *parts[len(asked) : -1], *parts[: len(asked)]]
        return [
            Part("CP", group, operation, size, times, "context")
            for group, operation, size, times in parts
            if anywhere(times)
        ]

    @cached_property
    def _source_heads(self) -> tuple[Values, ...]:
        return self._heads(self.config.sizes.source)

    @cached_property
    def _target_heads(self) -> tuple[Values, ...]:
        return self._heads(self.config.sizes.targets)

    def _heads(self, tokens: Values) -> tuple[Values, ...]:
        """Bytes of a rank's keys and values, of those on its ring, and of its queries,
        keys, values and output."""
        c, m = self.config, self.config.sizes
        element = c.micro_batch * tokens / c.cp * c.element_bytes / c.tp
        # ranks beyond the key heads hold copies of them
        heads = np.maximum(m.key_heads, c.tp * c.inner)
        query, key = (of * m.key_width * element for of in (m.heads, heads))
        out, value = (of * m.value_width * element for of in (m.heads, heads))
        ring = (key + value) * c.cp / c.inner
        return key + value, ring, query, key, value, out

    # ---- experts ---------------------------------------------------------------

    @property
    def _counted(self) -> bool:
        """Whether ranks exchange how many copies will come."""
        return self.gating is not None and self.gating.dispatch != "padded"

    def _counts(self) -> list[Part]:
        """How many copies will come."""
        ranks = self.config.expert_tp * self.config.ep
        times = (ranks > 1) * 1.0
        if not self._counted or not anywhere(times):
            return []
        size = 8 * self.config.sizes.experts * ranks
        of = "count_exchange"
        return [Part("control", "etp_ep", "all_gather", size, times, of)]

    def _exchange(self, phase: str, crosses: bool) -> list[Part]:
        """A token exchange; what is combined has the elements of activations, and the
        gradient of what is combined goes out as tokens do (DeepSeek-V3, arXiv
        2412.19437, section 3.3.2)."""
        times = (self.config.ep > 1) * 1.0
        if not anywhere(times):
            return []
        out = phase in ("dispatch", "combine_grad")
        size = self._exchanged[crosses, out]
        if not anywhere(self.config.dispatcher > 0):
            return [Part("EP", "ep", "all_to_all", size, times, phase=phase)]
        found = [
            Part("EP", group, "all_to_all", size, times * asked, phase=phase)
            for group, size, asked in self._levels[crosses, out]
            if anywhere(asked)
        ]
        return found if out else found[::-1]

    @cached_property
    def _levels(self) -> dict[tuple[bool, bool], list[tuple[str, Values, Values]]]:
        """Stages of an exchange in the order of the dispatch, by what it sends: group,
        bytes in whole rows, and 1 where there is one."""
        c, found = self.config, {}
        to_nodes, to_ranks = forwarded(c)
        within, across = (c.near > 1) * 1.0, (c.ep > c.near) * 1.0
        once, twice = c.dispatcher == DEDUPLICATED, c.dispatcher == TWO_LEVEL
        for (crosses, out), size in self._exchanged.items():
            copies, row = self._copies[crosses], self._token[out]
            node, rank = (np.round(copies * n) * row for n in (to_nodes, to_ranks))
            found[crosses, out] = [
                ("ep", size, (c.dispatcher == 0) * 1.0),
                ("ep_within", size, twice * within),
                ("ep_across", node, where(c.dispatcher > 0, across, 0.0)),
                ("ep_within", rank, once * within),
            ]
        return found

    def _split_experts(self, crosses: bool) -> list[Part]:
        """Tensor ranks of an expert see all copies of all of them."""
        ranks = self.config.expert_tp
        times = (ranks > 1) * 1.0
        if not anywhere(times):
            return []
        return [
            Part("TP", "etp", operation, size, times, "experts")
            for operation, size in (
                ("all_gather", self._exchanged[crosses, True] * ranks),
                ("reduce_scatter", self._exchanged[crosses, False] * ranks),
            )
        ]

    @cached_property
    def _copies(self) -> tuple[Values, Values]:
        """Token copies of a rank, by whether of a decoder behind an encoder."""
        c, gating, found = self.config, self.gating, []
        for tokens in (c.sizes.source, c.sizes.targets):
            copies = c.copies(tokens)
            if gating and gating.dispatch == "dropped":
                most = room(copies, c.sizes.experts, gating.capacity_factor)
                copies = np.minimum(copies, most)
            found.append(copies)
        return found[0], found[1]

    @cached_property
    def _exchanged(self) -> dict[tuple[bool, bool], Values]:
        """Bytes that a rank exchanges, by whether of a decoder behind an encoder, and
        whether they go to experts."""
        return {
            (crosses, out): self._copies[crosses] * self._token[out]
            for crosses in (False, True)
            for out in (False, True)
        }

    @cached_property
    def _token(self) -> tuple[Values, ...]:
        """Bytes of a token's vector, coming from experts and going there."""
        c = self.config
        sent = (c.row_bytes(c.sizes.hidden, dispatched=to) for to in (False, True))
        return tuple(sent)
