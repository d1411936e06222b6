"""Routers: how tokens choose experts, and what becomes of those that do not fit."""

from __future__ import annotations

from .capacity import capacity, keep
from .losses import load_balancing_loss, router_z_loss
from .registry import ROUTERS, Router, build
from .routing import Routing
from .switch import SwitchRouter
from .topk import TopKRouter

__all__ = [
    "ROUTERS",
    "Router",
    "Routing",
    "SwitchRouter",
    "TopKRouter",
    "build",
    "capacity",
    "keep",
    "load_balancing_loss",
    "router_z_loss",
]
