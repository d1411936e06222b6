"""Conformance checks for built-in and third-party routers.

Call :func:`check_router` in a test, for all sizes that the router supports::

    from moetraffic.gating import check_router

    def test_mine() -> None:
        check_router(lambda: MyRouter(32, 8), hidden=32, experts=8, tokens=50, k=2)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .protocols import Adaptive, Seeded
from .routing import Routing


def check_router(
    build: Callable[[], nn.Module],
    *,
    hidden: int,
    experts: int,
    tokens: int,
    k: int | None = None,
    capacity: int | None = None,
    largest_weight: float = 1.0,
    vocabulary: int = 256,
    seed: int = 0,
) -> None:
    """Check that a router follows the protocol of :class:`~.protocols.Router`.

    Parameters
    ----------
    build
        Creates a router; called several times, each time with the same seed.  The
        parameters are then redrawn from N(0, 1), so that loads are skewed.
    hidden, experts, tokens
        Sizes h, E and T.
    k
        Experts per token; None: a token may have any number.
    capacity
        Maximum number of copies per expert; None: unlimited, and none is dropped.
    largest_weight
        Weights lie between 0 and this.
    vocabulary
        Token ids are below this.
    seed
        Seed of the tokens, the parameters and the router's random numbers.

    Raises
    ------
    AssertionError
        At the first violated requirement, which the message describes.
    """
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=draws)
    ids = torch.randint(vocabulary, (tokens,), generator=draws)

    def router() -> nn.Module:
        _seed(seed)
        made = build()
        _require(isinstance(made, nn.Module), "a router must be a torch nn.Module")
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.normal_()
        return made

    def route(router: nn.Module, *, training: bool = True) -> Routing:
        _seed(seed + 1)
        routing: Routing = router.train(training)(x, ids=ids)
        kind = type(routing).__name__
        known = isinstance(routing, Routing)
        _require(known, f"a router must return a Routing, not a {kind}")
        return routing

    for training in (True, False):
        routing = route(router(), training=training)
        _check_shapes(routing, tokens, experts)
        _check_choices(routing, k)
        _check_capacity(routing, capacity)
        _check_weights(routing, largest_weight)
        _check_losses(routing)
        # a router must be deterministic for a given seed
        _check_equality(routing, route(router(), training=training))
    trained = router()
    _check_gradients(trained, route(trained))
    # identical routers must stay identical after reseeding and steps
    pair = [router(), router()]
    for one in pair:
        if isinstance(one, Seeded):
            one.reseed(3, 5)
        if isinstance(one, Adaptive):
            for _ in range(3):
                one.after_step(torch.arange(experts))
    first, second = map(route, pair)
    _check_equality(first, second)
    _check_choices(first, k)
    _check_capacity(first, capacity)


def _check_shapes(r: Routing, tokens: int, experts: int) -> None:
    """Check lengths, dtypes and index ranges of a routing."""
    dtypes = {"token": torch.int64, "expert": torch.int64, "kept": torch.bool}
    for name in ("token", "expert", "weight", "kept"):
        values: Tensor = getattr(r, name)
        _require(
            values.shape == (len(r.token),),
            f"token, expert, weight and kept must have one shape [N], but token has "
            f"{len(r.token)} copies and {name} is {list(values.shape)}",
        )
        wanted = dtypes.get(name)
        _require(
            values.dtype == wanted if wanted else values.dtype.is_floating_point,
            f"{name} must be {wanted or 'floating-point'}, but is {values.dtype}",
        )
    _require(
        (r.tokens, r.experts) == (tokens, experts),
        f"a routing of {tokens} tokens for {experts} experts must say so, but it says "
        f"{r.tokens} and {r.experts}",
    )
    for values, name, bound in (
        (r.token, "token", tokens),
        (r.expert, "expert", experts),
    ):
        inside = bool(((values >= 0) & (values < bound)).all())
        _require(inside, f"{name} must be from 0 to {bound - 1}, but some are not")


def _check_choices(r: Routing, k: int | None) -> None:
    """Check that a token's experts are distinct, and exactly k under token choice."""
    pairs = r.token * r.experts + r.expert
    _require(
        bool(pairs.sort().values.diff().all()),
        "a token's experts must be distinct, but some token chose one twice",
    )
    _require(
        r.k == k, f"the routing must say k = {k}, as was asked for, but says {r.k}"
    )
    if k is not None:
        each = torch.arange(r.tokens, device=r.token.device).repeat_interleave(k)
        _require(
            torch.equal(r.token, each),
            f"copies must be listed token by token, {k} of each, but they are not",
        )


def _check_capacity(r: Routing, capacity: int | None) -> None:
    """Check that loads respect the capacity, and that only full experts drop copies."""
    _require(
        r.capacity == capacity,
        f"the routing must say that the capacity is {capacity}, but says {r.capacity}",
    )
    if capacity is None:
        dropped = int((~r.kept).sum())
        _require(
            not dropped,
            f"without a capacity nothing is dropped, but {dropped} copies are",
        )
        return
    most = int(r.load().max())
    _require(
        most <= capacity,
        f"an expert takes at most {capacity} copies, but takes {most}",
    )
    idle = (r.dropped() > 0) & (r.load() < capacity)
    _require(
        not bool(idle.any()),
        f"only a full expert drops copies, but {int(idle.sum())} with room drop some",
    )


def _check_weights(r: Routing, largest: float) -> None:
    """Check that weights are finite and within their range."""
    weight = r.weight.detach()
    _require(bool(weight.isfinite().all()), "weights must be finite, but are not")
    if len(weight):
        low, high = float(weight.min()), float(weight.max())
        _require(
            low >= 0 and high <= largest * (1 + 1e-5),
            f"weights must lie between 0 and {largest:g}, but they reach from "
            f"{low:g} to {high:g}",
        )


def _check_losses(r: Routing) -> None:
    """Check that losses are finite scalars and rows of probabilities sum to 1."""
    for name in ("auxiliary_loss", "z_loss"):
        loss: Tensor = getattr(r, name).detach()
        _require(loss.shape == (), f"{name} must be a scalar, but is {loss.shape}")
        _require(
            bool(loss.isfinite()) and float(loss) >= 0,
            f"{name} must be finite and not negative, but is {float(loss)}",
        )
    auxiliary = float(r.auxiliary_loss.detach())
    _require(
        auxiliary <= r.experts * (1 + 1e-5),
        f"auxiliary_loss is at most the number of experts {r.experts}, but is "
        f"{auxiliary:g}",
    )
    if r.probabilities is not None:
        shares = r.probabilities.detach()
        _require(
            shares.shape == (r.tokens, r.experts),
            f"probabilities must be [T, E] = {[r.tokens, r.experts]}, but are "
            f"{list(shares.shape)}",
        )
        total = shares.sum(-1)
        _require(
            bool((shares >= 0).all())
            and torch.allclose(total, torch.ones_like(total), atol=1e-4),
            "probabilities must not be negative and sum to 1 in each row, but do not",
        )
    if r.balanced is not None:
        _require(
            r.balanced.shape[:1] == (r.tokens,) and r.balanced.dtype == torch.int64,
            "balanced must be [T, J] int64, but is "
            f"{list(r.balanced.shape)} {r.balanced.dtype}",
        )


def _check_equality(first: Routing, second: Routing) -> None:
    """Check that the tensors of two routings are equal element by element."""
    for name in ("token", "expert", "kept", "weight"):
        _require(
            torch.equal(getattr(first, name), getattr(second, name)),
            f"equal routers, tokens and seeds must give an equal {name}, but do not",
        )


def _check_gradients(router: nn.Module, r: Routing) -> None:
    """Check that a router's trainable parameters have finite, nonzero gradients."""
    learned = {n: p for n, p in router.named_parameters() if p.requires_grad}
    if not learned:
        return
    _require(
        r.weight.requires_grad,
        "weights must carry the gradient to the gate, but they carry none",
    )
    # factors that differ between copies: with equal ones, the gradient of weights that
    # sum to 1 would vanish
    differing = torch.linspace(1, 2, len(r.weight))
    loss = (r.weight * differing).sum() + r.auxiliary_loss + r.z_loss
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in learned.items():
        gradient = parameter.grad
        _require(
            gradient is not None and bool(gradient.isfinite().all()),
            f"the gradient of {name} must be finite, but is not, or there is none",
        )
        _require(
            gradient is not None and bool(gradient.any()),
            f"the gradient of {name} must not be zero, but is",
        )


def _seed(seed: int) -> None:
    # torch.manual_seed would also seed all accelerators, which takes a millisecond
    torch.default_generator.manual_seed(seed)


def _require(holds: bool, sentence: str) -> None:
    # no assert statement: these checks must also run under python -O in users' tests
    if not holds:
        raise AssertionError(sentence)
