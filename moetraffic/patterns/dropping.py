"""What a lossy network drops, and where: the settings of a loss tolerance."""

from __future__ import annotations

from dataclasses import dataclass

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


def unmet(dropping: Dropping) -> list[tuple[str, str]]:
    """The rules that it breaks, each with its remedy."""
    d, broken = dropping, []
    if d.site not in SITES:
        broken.append(
            (f"the site is one of {', '.join(SITES)}, not {d.site!r}", "see --site")
        )
    if d.pattern not in PATTERNS:
        broken.append(
            (
                f"the pattern is one of {', '.join(PATTERNS)}, not {d.pattern!r}",
                "see --pattern",
            )
        )
    if not 0 <= d.share < 1:
        broken.append(
            (
                f"the share dropped is at least 0 and below 1, but is {d.share}",
                "give percentages below 100",
            )
        )
    if d.packet_bytes < 64:
        broken.append(
            (
                f"a packet has at least 64 bytes, but packet-bytes is {d.packet_bytes}",
                "raise --packet-bytes",
            )
        )
    if not 1 <= d.burst_packets < 1e6:
        broken.append(
            (
                "a burst has at least 1 packet and fewer than a million, but "
                f"burst-packets is {d.burst_packets}",
                "change --burst-packets",
            )
        )
    if d.pattern == "bursts" and d.share / (1 - d.share) > d.burst_packets:
        broken.append(
            (
                f"bursts of {d.burst_packets} packets drop at most "
                f"{d.burst_packets / (1 + d.burst_packets):.1%}, but the share is "
                f"{d.share:.1%}",
                "raise --burst-packets",
            )
        )
    if d.site == "gradient_sync" and d.pattern == "lowest_weight":
        broken.append(
            (
                "gate weights order token copies, but gradient_sync sends gradients",
                "choose another --pattern",
            )
        )
    return broken
