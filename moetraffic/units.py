"""Format and parse byte counts, rates and times with their units."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from moetraffic.errors import MoetrafficError


def byte_size(count: float) -> str:
    """Format a number of bytes with a decimal prefix.

    Examples
    --------
    >>> byte_size(999), byte_size(2_500_000)
    ('999 B', '2.50 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def short_count(count: float) -> str:
    """Format a count in millions or billions.

    Examples
    --------
    >>> short_count(2_673_792), short_count(46_702_792_704)
    ('2.7M', '46.7B')
    """
    return f"{count / 1e9:,.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def amount(value: float, unit: str) -> str:
    """Format a value with its unit; blank if it is not finite.

    Examples
    --------
    >>> amount(2_500_000, "bytes"), amount(0.0012, "s"), amount(512.5, "token copies")
    ('2.50 MB', '1.2 ms', '512.5 copies')
    >>> amount(0.25, "1"), amount(float("nan"), "s")
    ('0.25', '')
    """
    if not math.isfinite(value):
        return ""
    if unit == "bytes":
        return byte_size(value)
    if unit == "s":
        return duration(value)
    return f"{value:.4g} copies" if unit == "token copies" else f"{value:.4g}"


def three_digits(value: float) -> str:
    """Format a number with three significant digits, trailing zeros included.

    Examples
    --------
    >>> three_digits(0.2), three_digits(1.0), three_digits(217.0), three_digits(12345.0)
    ('0.200', '1.00', '217', '12,300')
    """
    return _digits(value, "#.3g").rstrip(".")


def _digits(value: float, form: str) -> str:
    """Format three significant digits, of thousands and millions without exponent."""
    text = format(value, form)
    return f"{float(text):,.0f}" if 1000 <= abs(float(text)) < 1e9 else text


def rank_span(ranks: Sequence[int]) -> str:
    """Format world ranks as a range ("0 to 3") or a list ("2, 6").

    Examples
    --------
    >>> rank_span((0, 1, 2, 3)), rank_span((1, 3, 5, 7)), rank_span((2, 6))
    ('0 to 3', '1 to 7 by 2', '2, 6')
    """
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if len(ranks) > 3 and tuple(ranks) == tuple(
        range(ranks[0], ranks[-1] + 1, step or 1)
    ):
        by = f" by {step}" if step != 1 else ""
        return f"{ranks[0]} to {ranks[-1]}{by}"
    return ", ".join(map(str, ranks))


RATES = {
    **{f"{p}bps": 10**e / 8 for p, e in (("", 0), ("k", 3), ("M", 6), ("G", 9))},
    **{f"{p}B/s": 10.0**e for p, e in (("", 0), ("k", 3), ("M", 6), ("G", 9))},
    "Tbps": 1e12 / 8,
    "TB/s": 1e12,
}
"""bytes/s of each unit of a rate: bits with bps, bytes with B/s, prefixes decimal."""

TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
"""Seconds of each unit of time."""

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z/]+)")


def bytes_per_second(text: str, *, zero: bool = False) -> float:
    """Parse a data rate with its unit to bytes per second.

    ``zero`` admits a rate of 0, that of a failed link.

    Raises
    ------
    MoetrafficError
        If the text is not a positive number with a unit of :data:`RATES`.

    Examples
    --------
    >>> bytes_per_second("400Gbps"), bytes_per_second("50GB/s")
    (50000000000.0, 50000000000.0)
    """
    found = _QUANTITY.fullmatch(text)
    if found and found[2] in RATES and (zero or float(found[1]) > 0):
        return float(found[1]) * RATES[found[2]]
    raise MoetrafficError(
        f"a rate is a positive number with a unit of {', '.join(RATES)}, not {text!r}: "
        "400Gbps are 400e9 bits a second, 50GB/s are 50e9 bytes"
    )


_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([kmgt]?)(i?)b")
_PREFIXES = {"k": 1, "m": 2, "g": 3, "t": 4}


def byte_count(text: str) -> int:
    """Parse a number of bytes such as ``500MB``, ``2.5GB`` or ``4GiB``.

    Raises
    ------
    MoetrafficError
        If the text is no such number, or less than one byte.

    Examples
    --------
    >>> byte_count("500MB"), byte_count("4KiB"), byte_count("1000B")
    (500000000, 4096, 1000)
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is not None and bool(found[2]) >= bool(found[3]):
        base = 1024 if found[3] else 1000
        count = int(float(found[1]) * base ** _PREFIXES.get(found[2], 0))
        if count > 0:
            return count
    raise MoetrafficError(
        f"a size is a number with B, kB, MB, GB or TB, above 0, not {text!r}: give it "
        "as 20GB"
    )


_POWER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([KMGkmg]?)i?[Bb]?")


def message_size(text: str, *, error: type[MoetrafficError] = MoetrafficError) -> int:
    """Parse a size in bytes as nccl-tests does: K, M, G are powers of 1024.

    Raises
    ------
    MoetrafficError
        Of the type ``error``, if the size is invalid, or 0.

    Examples
    --------
    >>> message_size("8"), message_size("1.5K"), message_size("32M")
    (8, 1536, 33554432)
    """
    found = _POWER.fullmatch(text)
    power = {"": 0, "k": 1, "m": 2, "g": 3}
    size = int(float(found[1]) * 1024 ** power[found[2].lower()]) if found else 0
    if size < 1:
        raise error(
            f"a size is a positive number with K, M or G for powers of 1024, not "
            f"{text!r}: give such as 8, 64K or 32M"
        )
    return size


def seconds(text: str) -> float:
    """Parse a time with its unit to seconds.

    Raises
    ------
    MoetrafficError
        If the text is not a non-negative number with a unit of :data:`TIMES`.

    Examples
    --------
    >>> seconds("1.5ms"), seconds("0us"), seconds("10us")
    (0.0015, 0.0, 1e-05)
    """
    found = _QUANTITY.fullmatch(text)
    if found and found[2] in TIMES:
        return float(found[1]) / round(1 / TIMES[found[2]])  # 10us: 1e-05, exactly
    raise MoetrafficError(
        f"a time is a number of 0 or more with a unit of {', '.join(TIMES)}, not "
        f"{text!r}: 10us are ten microseconds"
    )


def bit_rate(bytes_s: float) -> str:
    """Format a rate in bytes per second as bits per second with a decimal prefix.

    Examples
    --------
    >>> bit_rate(50e9), bit_rate(1.25e6)
    ('400 Gbps', '10 Mbps')
    """
    rate = 8 * bytes_s
    for unit in ("bps", "kbps", "Mbps", "Gbps"):
        if rate < 1000:
            return f"{rate:.3g} {unit}"
        rate /= 1000
    return f"{rate:.3g} Tbps"


def byte_rate(bytes_s: float) -> str:
    """Format a rate in bytes per second in GB/s, the unit of bus bandwidths.

    Examples
    --------
    >>> byte_rate(50e9), byte_rate(3.75e6)
    ('50.0 GB/s', '0.00375 GB/s')
    """
    return f"{three_digits(bytes_s / 1e9)} GB/s"


def duration(value_s: float) -> str:
    """Format a time in seconds with a decimal prefix; blank if NaN.

    Examples
    --------
    >>> duration(0.00125), duration(3e-8), duration(12345.0), duration(float("nan"))
    ('1.25 ms', '30 ns', '12,300 s', '')
    >>> duration(-0.02)
    '-20 ms'
    """
    if value_s != value_s:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value_s) >= scale:
            return f"{_digits(value_s / scale, '.3g')} {unit}"
    return f"{value_s / 1e-9:.3g} ns"
