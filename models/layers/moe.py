"""Expert-parallel mixture-of-experts layer: a token's way to its experts and back.

:meth:`MixtureOfExperts.forward` is the whole way, and :func:`exchange` the all-to-all.
A layer has four of them: dispatch and combine, and in the backward pass the gradient of
combine and that of dispatch; before the first, ranks tell how many rows come, unless
they are padded.  Of virtual ranks (:mod:`.virtual_moe`) nothing is sent.

Shape suffixes: T tokens of this rank, N kept copies of them, A copies that arrive at
this rank, E experts, L = E/W local experts, W ranks of the expert-parallel group, C
capacity, h hidden size, f feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moetraffic.capture import at
from moetraffic.capture import routing as report_routing
from moetraffic.errors import LayoutError
from moetraffic.gating import Adaptive, Router, Routing, balance_counts, balance_loss

from .feedforward import LocalExperts


class MixtureOfExperts(nn.Module):
    """Expert-parallel MoE layer: route, dispatch, apply local experts, combine.

    Experts are contiguous over the ranks of the group: rank r holds experts
    ``r E/W .. (r+1) E/W - 1``.  Without a group, or with one of a single rank, all
    experts are here and nothing is sent.

    Parameters
    ----------
    router
        A :class:`~moetraffic.gating.Router` module for all E experts.
    experts
        Number of experts E.
    hidden, width
        Sizes h and f.
    dispatch
        ``"padded"`` sends ``[E, C, h]`` whatever is routed, ``"dropped"`` the copies
        that have room, ``"dropless"`` all copies.
    layer
        Global layer index, for recording.
    group
        The expert-parallel process group, or None.
    activation, gated
        Of the experts, as :class:`~.feedforward.LocalExperts` has them.
    """

    def __init__(
        self,
        router: nn.Module,
        *,
        experts: int,
        hidden: int,
        width: int,
        dispatch: str,
        layer: int,
        group: dist.ProcessGroup | None = None,
        activation: str = "gelu",
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.ranks = 1 if group is None else group.size()
        if experts % self.ranks:
            raise LayoutError(
                f"ep must divide the experts, but there are {experts} experts for ep "
                f"{self.ranks}: change --experts or --ep"
            )
        self.experts_all = experts
        self.local = experts // self.ranks  # experts of this rank
        self.dispatch = dispatch
        self.layer = layer
        self.group = group
        self.balance_scope = "micro_batch"  # or "sequence", or "global": of all ranks
        self.replicas: dist.ProcessGroup | None = None  # data-parallel group
        # load passed to adaptive routers after the step; not part of the model's state
        self.load = torch.zeros(experts, dtype=torch.int64)
        self.router = router
        self.experts = LocalExperts(
            self.local, hidden, width, activation=activation, gated=gated
        )

    @property
    def first_expert(self) -> int:
        """Global index of this rank's first expert."""
        rank = 0 if self.group is None else dist.get_rank(self.group)
        return rank * self.local

    def forward(self, x: Tensor, ids: Tensor | None = None) -> tuple[Tensor, Routing]:
        """Compute the weighted sum of the experts' outputs, and the routing.

        ``x`` is ``[B, S, h]``, or ``[T, h]`` where there are no sequences; ``ids`` are
        ``[B, S]`` or ``[T]`` int64 token ids, for routers that go by them.  A token all
        of whose copies were dropped gets zeros: the residual stream around this layer
        carries it on (Fedus et al., arXiv 2101.03961, section 2.2).
        """
        x_th = x.reshape(-1, x.shape[-1])
        ids_t = None if ids is None else ids.reshape(-1)
        routing = self.route(x_th, ids_t, len(x) if x.dim() > 2 else 1)
        # Step 1: the kept copies, by expert and then by token.
        kept_n = routing.kept.nonzero().squeeze(1)
        order_n = kept_n[torch.argsort(routing.expert[kept_n], stable=True)]
        token_n, weight_n = routing.token[order_n], routing.weight[order_n]
        rows_nh = x_th.index_select(0, token_n)
        # Step 2: to the experts' ranks (dispatch), their work, and back (combine).
        done_nh = self.through_experts(rows_nh, routing, order_n)
        # Step 3: each token sums its copies.
        done_nh = (done_nh * weight_n.unsqueeze(1)).to(x_th.dtype)
        return torch.zeros_like(x_th).index_add(0, token_n, done_nh).view_as(x), routing

    def route(self, x_th: Tensor, ids_t: Tensor | None, sequences: int) -> Routing:
        """Route the tokens of so many sequences, and report the routing."""
        routing = cast("Router", self.router)(x_th, ids=ids_t)
        (routing,) = self.balanced([routing], sequences)
        demand = routing.demand()
        drops = torch.zeros_like(demand)
        if self.dispatch != "dropless":
            drops = routing.dropped()
        chosen = routing.chosen()
        report_routing(self.layer, demand, drops, self.group, chosen=chosen)
        return routing

    def through_experts(
        self, rows_nh: Tensor, routing: Routing, order_n: Tensor
    ) -> Tensor:
        """Send rows to their experts, which process them, and back.

        ``order_n`` are the rows' numbers among the copies of the routing.
        """
        if self.dispatch == "padded":
            return self._padded(rows_nh, routing, order_n)
        counts_e = routing.load()
        if self.group is None or self.ranks == 1:
            return self.experts.ragged(rows_nh, counts_e.tolist())
        return self._ragged(rows_nh, counts_e, self.group)

    def _ragged(
        self, rows_nh: Tensor, counts_e: Tensor, group: dist.ProcessGroup
    ) -> Tensor:
        """Exchange the kept copies, as many with each rank as are routed there."""
        arriving_wl = torch.empty_like(counts_e)
        with at(layer=self.layer, label="count_exchange"):
            dist.all_to_all_single(arriving_wl, counts_e, group=group)
        arriving_wl = arriving_wl.view(self.ranks, -1)
        send = counts_e.view(self.ranks, -1).sum(1).tolist()
        receive = arriving_wl.sum(1).tolist()
        rows_ah = exchange(
            rows_nh, send, receive, group=group, layer=self.layer, phase="dispatch"
        )
        # Rows arrive by source rank, then expert; the experts want them by expert.
        expert_wl = torch.arange(self.local, device=rows_ah.device).repeat(self.ranks)
        expert_a = expert_wl.repeat_interleave(arriving_wl.reshape(-1))
        order_a = torch.argsort(expert_a, stable=True)
        done_ah = self.experts.ragged(
            rows_ah.index_select(0, order_a), arriving_wl.sum(0).tolist()
        )
        back_a = torch.argsort(order_a)
        return exchange(
            done_ah.index_select(0, back_a),
            receive,
            send,
            group=group,
            layer=self.layer,
            phase="combine",
        )

    def _padded(self, rows_nh: Tensor, routing: Routing, order_n: Tensor) -> Tensor:
        """Exchange ``[E, C, h]`` buffers padded with zeros, with equal split sizes."""
        if routing.capacity is None:
            raise LayoutError(
                "a padded dispatch needs a capacity, but the router gives none: set "
                "--capacity-factor or use --dispatch dropless"
            )
        # a kept copy's slot is its expert's first slot plus its place there
        expert_n, counts_e = routing.expert[order_n], routing.load()
        begin_e = counts_e.cumsum(0) - counts_e
        place_n = torch.arange(len(order_n), device=order_n.device) - begin_e[expert_n]
        slot_n = expert_n * routing.capacity + place_n
        hidden, local = rows_nh.shape[1], self.local
        slots = rows_nh.new_zeros(self.experts_all * routing.capacity, hidden)
        slots = self._even(slots.index_copy(0, slot_n, rows_nh), "dispatch")
        x_wlch = slots.view(self.ranks, local, routing.capacity, hidden)
        x_lwch = x_wlch.transpose(0, 1).reshape(local, -1, hidden)
        done_lwch = self.experts.batched(x_lwch)
        done_wlch = done_lwch.view(local, self.ranks, -1, hidden).transpose(0, 1)
        done = self._even(done_wlch.reshape(-1, hidden), "combine")
        return done.index_select(0, slot_n)

    def _even(self, slots: Tensor, phase: str) -> Tensor:
        """Exchange as many rows with each rank, if there are several."""
        if self.group is None or self.ranks == 1:
            return slots
        return exchange(
            slots, None, None, group=self.group, layer=self.layer, phase=phase
        )

    def balanced(self, routings: list[Routing], sequences: int) -> list[Routing]:
        """Set the balance loss of this layer's scope, and count the expert load.

        The routings are of one rank or of several virtual ones, each of so many
        sequences.
        """
        # a recomputed forward pass has been counted already
        if torch._C._current_graph_task_id() == -1:
            demand = torch.stack([r.demand() for r in routings]).sum(0)
            self.load = self.load.to(demand.device) + demand
        if self.balance_scope == "micro_batch":
            return routings
        counts = None
        if self.balance_scope == "global":
            counts = torch.stack([balance_counts(r) for r in routings]).sum(0)
            if self.replicas is not None and self.replicas.size() > 1:
                with at(layer=self.layer, label="balance_counts"):
                    dist.all_reduce(counts, group=self.replicas)
        scope = self.balance_scope
        losses = [
            balance_loss(r, scope, sequences=sequences, counts=counts) for r in routings
        ]
        return [
            replace(r, auxiliary_loss=loss)
            for r, loss in zip(routings, losses, strict=True)
        ]


def adapt(
    mixtures: Sequence[MixtureOfExperts], replicas: dist.ProcessGroup | None
) -> None:
    """Pass the expert load of the finished step to each adaptive router.

    Loads are summed over ``replicas``, the data-parallel group, if there is one.
    """
    adaptive = [m for m in mixtures if isinstance(m.router, Adaptive)]
    if not adaptive:
        return
    loads = torch.stack([m.load for m in adaptive])  # [layers, E]
    if replicas is not None and replicas.size() > 1:
        with at(label="router_load"):
            dist.all_reduce(loads, group=replicas)
    for mixture, load in zip(adaptive, loads, strict=True):
        mixture.load = torch.zeros_like(load)
        cast("Adaptive", mixture.router).after_step(load)


def exchange(
    rows: Tensor,
    send: list[int] | None,
    receive: list[int] | None,
    *,
    group: dist.ProcessGroup,
    layer: int,
    phase: str,
) -> Tensor:
    """Exchange rows with all ranks of a group by a differentiable all-to-all.

    ``rows`` are ``[N, h]``, those for rank 0 first; ``send`` and ``receive`` count the
    rows for and from each rank, None if N is divided evenly.  The result is
    ``[sum(receive), h]``.  Its backward pass is the reverse all-to-all.  The forward
    call is annotated with ``phase``, the backward call with ``phase + "_grad"``.
    """
    apply = cast("Callable[..., Tensor]", _Exchange.apply)
    return apply(rows, send, receive, group, layer, phase)


class _Exchange(torch.autograd.Function):
    """``all_to_all_single`` whose gradient is the reverse ``all_to_all_single``."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        send: list[int] | None,
        receive: list[int] | None,
        group: dist.ProcessGroup,
        layer: int,
        phase: str,
    ) -> Tensor:
        ctx.send, ctx.receive = send, receive
        ctx.group, ctx.layer, ctx.phase = group, layer, phase
        with at(layer=layer, phase=phase):
            return _all_to_all(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        # the way back: combine_grad goes to the experts, dispatch_grad home
        with at(layer=ctx.layer, phase=f"{ctx.phase}_grad"):
            rows = _all_to_all(gradient, ctx.receive, ctx.send, ctx.group)
        return rows, None, None, None, None, None


def _all_to_all(
    rows: Tensor,
    send: list[int] | None,
    receive: list[int] | None,
    group: dist.ProcessGroup,
) -> Tensor:
    arriving = len(rows) if receive is None else sum(receive)
    arrived = rows.new_empty(arriving, *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
    return arrived
