"""Names of the policies that are evaluated where none are named."""

DEFAULT_POLICIES = (
    *("packets", "rotation", "static-mean", "birkhoff", "solstice", "eclipse"),
    "max-weight",
)
"""Policies of circuits; without a packet switch all but the first."""
