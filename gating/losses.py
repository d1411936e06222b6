"""The losses that keep a router healthy: load balancing and the router z-loss."""

from __future__ import annotations

import torch
from torch import Tensor


def load_balancing_loss(probabilities: Tensor, expert: Tensor) -> Tensor:
    """The auxiliary loss ``E sum_i f_i P_i``: 1 for a uniform router, at most E.

    ``f_i`` is the share of token copies that chose expert i, ``P_i`` the mean
    probability of expert i.  The gradient flows through ``P`` alone.  Copies over
    capacity count: the loss sees what the router wanted.

    Parameters
    ----------
    probabilities
        ``[T, E]`` float, rows sum to 1.
    expert
        ``[N]`` int64 (any shape), the chosen experts; ``N = k T`` for token choice.

    Returns
    -------
    Tensor
        Scalar.

    References
    ----------
    k = 1: Fedus et al., "Switch Transformers", arXiv 2101.03961, equations 4 to 6.
    k > 1: Dai et al., "DeepSeekMoE", arXiv 2401.06066, equations 12 to 14, which
    divide the counts by k so that the uniform value stays 1.
    """
    tokens, experts = probabilities.shape
    counts = torch.bincount(expert.reshape(-1), minlength=experts)
    share = counts.to(probabilities.dtype) / max(expert.numel(), 1)
    mean = probabilities.sum(0) / max(tokens, 1)
    return experts * (share * mean).sum()


def router_z_loss(logits: Tensor) -> Tensor:
    """The mean over tokens of ``logsumexp(logits)^2``: it keeps logits small.

    Parameters
    ----------
    logits
        ``[T, E]`` float.

    Returns
    -------
    Tensor
        Scalar; ``(log E)^2`` for logits of zero.

    References
    ----------
    Zoph et al., "ST-MoE", arXiv 2202.08906, equation 5.
    """
    return logits.logsumexp(-1).square().sum() / max(len(logits), 1)
