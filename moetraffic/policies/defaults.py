"""Policies that are evaluated, and packets beside circuits, where none are given."""

DEFAULT_POLICIES = (
    "packets",
    "rotation",
    "static-mean",
    "birkhoff",
    "solstice",
    "max-weight",
)
"""Policies of circuits; without a packet switch all but the first."""

DEFAULT_PACKETS = "50Gbps"
"""Rate of a port to the packet switch beside the circuits."""
