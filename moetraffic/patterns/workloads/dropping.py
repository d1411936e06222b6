"""What a lossy network drops, and where: the settings of a loss tolerance."""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.patterns.rules import Broken, unmet

SITES = ("dispatch", "combine", "dispatch_grad", "combine_grad", "gradient_sync")
"""Exchanges that can lose data: a MoE layer's four, and the gradients' all-reduce."""

PATTERNS = ("packets", "bursts", "messages", "lowest_weight")
"""Independent packets, runs of packets, whole messages between two ranks, or the token
copies of the lowest gate weight."""


@dataclass(frozen=True, kw_only=True)
class Dropping:
    """What is dropped; what is dropped arrives as zeros.

    A message is what one rank sends another in one exchange; a rank's own tokens do
    not cross the network and are never dropped.
    """

    site: str = "combine"  # one of SITES
    pattern: str = "packets"  # one of PATTERNS
    share: float = 0.0  # of the bytes that cross the network, 0 to below 1
    compensate: bool = False  # what arrives is multiplied by 1 / (1 - share)
    packet_bytes: int = 4096  # payload of a packet; RoCE's largest MTU
    burst_packets: float = 8.0  # mean length of a run of lost packets


def broken_rules(dropping: Dropping) -> list[Broken]:
    """The rules that it breaks, each with its remedy."""
    d = dropping
    most = d.burst_packets / (1 + d.burst_packets) if d.burst_packets > 0 else 0.0
    return unmet(
        (
            d.site in SITES,
            f"the site is one of {', '.join(SITES)}, not {d.site!r}: see --site",
        ),
        (
            d.pattern in PATTERNS,
            f"the pattern is one of {', '.join(PATTERNS)}, not {d.pattern!r}: "
            "see --pattern",
        ),
        (
            0 <= d.share < 1,
            f"the share dropped is at least 0 and below 1, but is {d.share}: "
            "give percentages below 100",
        ),
        (
            d.packet_bytes >= 64,
            f"a packet has at least 64 bytes, but packet-bytes is {d.packet_bytes}: "
            "raise --packet-bytes",
        ),
        (
            1 <= d.burst_packets < 1e6,
            "a burst has at least 1 packet and fewer than a million, but "
            f"burst-packets is {d.burst_packets}: change --burst-packets",
        ),
        (
            d.pattern != "bursts" or d.share <= most,
            f"bursts of {d.burst_packets} packets drop at most {most:.1%}, but the "
            f"share is {d.share:.1%}: raise --burst-packets",
        ),
        (
            (d.site, d.pattern) != ("gradient_sync", "lowest_weight"),
            "gate weights order token copies, but gradient_sync sends gradients: "
            "choose another --pattern",
        ),
    )
