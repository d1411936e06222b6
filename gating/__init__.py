"""Routers, expert capacity and load-balancing losses of mixture-of-experts layers."""

from .capacity import capacity, keep
from .deepseek import DeepSeekRouter
from .expert_choice import ExpertChoiceRouter
from .fairscale_top2 import FairscaleTop2Router
from .gshard import GShardRouter
from .hashing import HashRouter
from .losses import (
    balance_counts,
    balance_loss,
    global_balance_loss,
    load_balancing_loss,
    load_error_sign,
    router_z_loss,
    sequence_balance_loss,
)
from .registry import build
from .router import Adaptive, Router, Seeded
from .routing import Routing
from .sinkhorn import SinkhornRouter
from .switch import SwitchRouter
from .topk import TopKRouter

__all__ = [
    "Adaptive",
    "DeepSeekRouter",
    "ExpertChoiceRouter",
    "FairscaleTop2Router",
    "GShardRouter",
    "HashRouter",
    "Router",
    "Routing",
    "Seeded",
    "SinkhornRouter",
    "SwitchRouter",
    "TopKRouter",
    "balance_counts",
    "balance_loss",
    "build",
    "capacity",
    "global_balance_loss",
    "keep",
    "load_balancing_loss",
    "load_error_sign",
    "router_z_loss",
    "sequence_balance_loss",
]
