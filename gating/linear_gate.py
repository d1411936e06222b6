"""Linear gate that computes one logit per token and expert in float32 or float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moetraffic.errors import LayoutError


def check_k(k: int, experts: int) -> None:
    """Check that the number of experts per token k is between 1 and the expert count.

    Raises
    ------
    LayoutError
        If k is not between 1 and the number of experts.
    """
    if not 1 <= k <= experts:
        raise LayoutError(
            f"a token's k experts are distinct, but k is {k} and there are {experts} "
            f"experts: choose k between 1 and {experts}"
        )


class LinearGate(nn.Module):
    """Base class of routers with a linear gate: logits ``x W^T`` per token and expert.

    Logits are computed in float32 (float64 for float64 input), regardless of the input
    dtype and of an enclosing autocast: routing in bfloat16 is unstable (Fedus et al.,
    arXiv 2101.03961, section 2.4, "selective precision").

    Parameters
    ----------
    hidden
        Width h of a token vector.
    experts
        Number of experts E.
    """

    shown: tuple[str, ...] = ("hidden", "experts")  # attributes in ``repr``

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts, hidden))  # [E, h]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the gate's weights from N(0, 0.02^2), as in GPT-2."""
        nn.init.normal_(self.weight, std=0.02)

    def logits(self, x: Tensor) -> Tensor:
        """Compute the ``[T, E]`` logits of ``[T, h]`` token vectors."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(dtype), self.weight.to(dtype))

    def extra_repr(self) -> str:
        """Format the sizes and options for ``print(module)``."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.shown)
