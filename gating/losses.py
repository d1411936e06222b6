"""Load-balancing losses, the router z-loss and the update of the loss-free bias.

A balance loss is ``E sum_i f_i P_i``: ``f_i`` is the share of token copies that chose
expert i, ``P_i`` the mean probability of expert i over the tokens of this rank's
micro-batch.  It is 1 for a uniform router and at most E; its gradient flows through
``P`` alone.  Copies over capacity are counted, because they are part of the demand.
The losses differ in the tokens over which ``f`` is computed: those of the micro-batch,
of each sequence, or of the global batch.  Every loss is a scalar tensor; below,
``probabilities`` are ``[T, E]`` float whose rows sum to 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moetraffic.errors import LayoutError

from .routing import Routing


def load_balancing_loss(probabilities: Tensor, expert: Tensor) -> Tensor:
    """Compute the load-balancing loss of a micro-batch.

    ``expert`` is int64 of any shape, the chosen experts.  k = 1: Switch, arXiv
    2101.03961, equations 4 to 6; k > 1: DeepSeekMoE, arXiv 2401.06066, equations 12 to
    14, which divide the counts by k so that the uniform value stays 1.
    """
    counts = torch.bincount(expert.reshape(-1), minlength=probabilities.shape[1])
    return global_balance_loss(probabilities, counts)


def sequence_balance_loss(
    probabilities: Tensor, expert: Tensor, sequences: int
) -> Tensor:
    """Compute the load-balancing loss of each of B sequences, averaged over them.

    ``expert`` is ``[T, J]`` int64, the experts counted for each token.  DeepSeek-V2,
    arXiv 2405.04434, section 2.2.3; V3, arXiv 2412.19437, equations 17 to 20.
    """
    tokens, experts = probabilities.shape
    if sequences < 1 or tokens % sequences or len(expert) != tokens:
        raise LayoutError(
            "a loss by sequence needs as many tokens of each, but there are "
            f"{tokens} tokens ({len(expert)} with experts) of {sequences} sequences: "
            "use the balance scope micro_batch"
        )
    which = torch.arange(sequences, device=expert.device).unsqueeze(1)
    numbered = expert.reshape(sequences, -1) + which * experts  # [B, S J]
    counts = torch.bincount(numbered.reshape(-1), minlength=sequences * experts)
    share = counts.view(sequences, experts).to(probabilities.dtype)
    share = share / max(numbered.shape[1], 1)
    mean = probabilities.view(sequences, -1, experts).sum(1)
    mean = mean / max(tokens // sequences, 1)
    return experts * (share * mean).sum(1).mean()


def global_balance_loss(probabilities: Tensor, counts: Tensor) -> Tensor:
    """Compute the load-balancing loss with expert counts of a larger (global) batch.

    ``counts`` are ``[E]`` int64, copies that chose each expert, summed over the
    data-parallel ranks.  For ranks with equal numbers of tokens, the mean of this loss
    over ranks is that of all tokens.  Qiu et al., arXiv 2501.11873, section 3.
    """
    tokens, experts = probabilities.shape
    share = counts.to(probabilities.dtype) / counts.sum().clamp(min=1)
    mean = probabilities.sum(0) / max(tokens, 1)
    return experts * (share * mean).sum()


def balance_counts(routing: Routing) -> Tensor:
    """Count token copies per expert ``[E]`` int64 for the balance losses."""
    chosen = routing.expert if routing.balanced is None else routing.balanced
    return torch.bincount(chosen.reshape(-1), minlength=routing.experts)


def balance_loss(
    routing: Routing, scope: str, *, sequences: int = 1, counts: Tensor | None = None
) -> Tensor:
    """Compute the load-balancing loss of a routing for one of ``BALANCE_SCOPES``.

    ``"micro_batch"`` is the loss computed by the router; ``"sequence"`` needs the
    number of sequences; ``"global"`` the :func:`balance_counts` summed over ranks.  A
    router without balance loss (no ``probabilities``) has its own for every scope.
    """
    if scope == "micro_batch" or routing.probabilities is None:
        return routing.auxiliary_loss
    if scope == "sequence":
        chosen = routing.expert_tk if routing.balanced is None else routing.balanced
        return sequence_balance_loss(routing.probabilities, chosen, sequences)
    if scope == "global" and counts is not None:
        return global_balance_loss(routing.probabilities, counts)
    raise LayoutError(
        "a balance scope is micro_batch, sequence, or global with counts, but is "
        f"{scope!r}{' without counts' if counts is None else ''}: give one of these"
    )


def router_z_loss(logits: Tensor) -> Tensor:
    """Compute the router z-loss: the mean of ``logsumexp(logits)^2`` over tokens.

    ``(log E)^2`` for ``[T, E]`` logits of zero.  ST-MoE, arXiv 2202.08906, equation 5.
    """
    return logits.logsumexp(-1).square().sum() / max(len(logits), 1)


def load_error_sign(load: Tensor) -> Tensor:
    """Compute the direction of the loss-free bias: sign of ``mean(load) - load``.

    ``load`` is ``[E]`` int64, and so is the result, in integer arithmetic.  Wang et
    al., arXiv 2408.15664, algorithm 1; DeepSeek-V3, arXiv 2412.19437, section 2.1.2.
    """
    return (load.sum() - load * load.numel()).sign()
