"""Hosts on one machine: network namespaces whose links token buckets limit.

Each host is a namespace with one end of a veth pair; the other ends are ports of a
bridge, the switch, in a namespace of its own.  With two racks there are two bridges,
and a veth pair between them.  Every link is limited each way (tc tbf).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

PREFIX = os.environ.get("MOETRAFFIC_NETNS", f"moetraffic{os.getpid()}")
"""Of the namespaces' names: whoever sets it can remove what a kill leaves behind."""

PATIENCE_S = 500


def command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, kw_only=True)
class Hosts:
    names: tuple[str, ...]  # namespace of each host; 10.77.0.1 and on
    hub: str  # namespace of the switches
    racks: int

    def rack(self, host: int) -> int:
        return host * self.racks // len(self.names)


@contextmanager
def hosts(number: int, racks: int = 1) -> Iterator[Hosts]:
    """Hosts at one switch a rack; all of it is gone afterwards, whatever happens."""
    names = tuple(f"{PREFIX}r{host}" for host in range(number))
    made = Hosts(names=names, hub=f"{PREFIX}hub", racks=racks)
    try:
        command("ip", "netns", "add", made.hub)
        for rack in range(racks):
            bridge = f"br{rack}"
            command("ip", "-n", made.hub, "link", "add", bridge, "type", "bridge")
            command("ip", "-n", made.hub, "link", "set", bridge, "up")
        for rack in range(1, racks):
            ends = f"up{rack}a", f"up{rack}b"
            command(
                *("ip", "-n", made.hub, "link", "add", ends[0], "type", "veth"),
                *("peer", "name", ends[1]),
            )
            for end, bridge in zip(ends, ("br0", f"br{rack}"), strict=True):
                command(
                    *("ip", "-n", made.hub, "link", "set", end, "master", bridge, "up")
                )
        for host, name in enumerate(names):
            command("ip", "netns", "add", name)
            pair = ("name", "eth0", "netns", name, "type", "veth")
            port = f"p{host}"
            command(
                *("ip", "link", "add", *pair, "peer", "name", port, "netns", made.hub)
            )
            bridge = f"br{made.rack(host)}"
            command(
                *("ip", "-n", made.hub, "link", "set", port, "master", bridge, "up")
            )
            address = f"10.77.0.{host + 1}/24"
            command("ip", "-n", name, "addr", "add", address, "dev", "eth0")
            for link in ("eth0", "lo"):
                command("ip", "-n", name, "link", "set", link, "up")
        yield made
    finally:
        for name in (*names, made.hub):
            subprocess.run(
                ["ip", "netns", "del", name], capture_output=True, check=False
            )


def limit(
    of: Hosts,
    rate_mbps: float,
    *,
    between_mbps: float | None = None,
    rates_mbps: Sequence[float] = (),
    burst: str = "256kb",
) -> None:
    """Limit each host's link, and those between racks, each way.

    ``rates_mbps`` are the hosts' own rates, ``rate_mbps`` that of all others.
    """
    rates = rates_mbps or [rate_mbps] * len(of.names)
    links = [(name, "eth0", mbps) for name, mbps in zip(of.names, rates, strict=True)]
    links += [(of.hub, f"p{host}", mbps) for host, mbps in enumerate(rates)]
    for rack in range(1, of.racks):
        for end in "ab":
            links.append((of.hub, f"up{rack}{end}", between_mbps or rate_mbps))
    for space, link, mbps in links:
        command(
            *("tc", "-n", space, "qdisc", "replace", "dev", link, "root", "tbf"),
            *("rate", f"{mbps:g}mbit", "burst", burst, "latency", "400ms"),
        )


def sent_bytes(of: Hosts) -> int:
    """Bytes that all limited links to and from the hosts have sent, with headers."""
    links = [(name, "eth0") for name in of.names]
    links += [(of.hub, f"p{host}") for host in range(len(of.names))]
    told = (
        command("tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", link)
        for space, link in links
    )
    return sum(int(json.loads(text)[0]["bytes"]) for text in told)


def ranks(
    names: Sequence[str], program: Sequence[str], port: int, *, a_core: int = 2
) -> str:
    """Run one rank a namespace, ``a_core`` on a core; what the first one prints."""
    cores = sorted(os.sched_getaffinity(0))
    started: list[subprocess.Popen[str]] = []
    try:
        for rank, name in enumerate(names):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(names)),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(len(names)),
                "MASTER_ADDR": "10.77.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            core = cores[rank // a_core % len(cores)]
            words = ["ip", "netns", "exec", name, "taskset", "-c", str(core), *program]
            started.append(
                subprocess.Popen(
                    words,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        said = [one.communicate(timeout=PATIENCE_S) for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    for one, (_, err) in zip(started, said, strict=True):
        if one.returncode:
            raise OSError(f"a rank ended with {one.returncode}: {err[-2000:]}")
    return said[0][0]
