"""Units are read strictly: a bit is no byte, a capital is no small letter."""

from __future__ import annotations

import pytest

from moetraffic.errors import MoetrafficError
from moetraffic.units import bit_rate, bytes_per_second, duration, seconds


def test_rates() -> None:
    assert bytes_per_second("400Gbps") == bytes_per_second("50GB/s") == 50e9
    assert bytes_per_second("1.6Tbps") == 200e9
    assert bytes_per_second("8bps") == 1.0
    assert bytes_per_second("3kB/s") == 3000.0


@pytest.mark.parametrize(
    "text",
    ["400", "400gbps", "400 Gbps", "400Gb", "-1Gbps", "0Gbps", "1e3Gbps", "GB/s", ""],
)
def test_no_rates(text: str) -> None:
    with pytest.raises(MoetrafficError, match="50GB/s are 50e9 bytes"):
        bytes_per_second(text)


def test_times() -> None:
    assert seconds("10us") == pytest.approx(1e-5)
    assert (seconds("0s"), seconds("15ms"), seconds("20ns")) == (0.0, 0.015, 2e-8)
    for text in ("10", "10 us", "-1us", "10Us", "1min", "us"):
        with pytest.raises(MoetrafficError, match="10us are ten microseconds"):
            seconds(text)


def test_what_is_written_reads_well() -> None:
    assert [bit_rate(r) for r in (50e9, 200e9, 1.0)] == [
        "400 Gbps",
        "1.6 Tbps",
        "8 bps",
    ]
    assert [duration(t) for t in (2.0, 0.0125, 1e-5, 0.0)] == [
        "2 s",
        "12.5 ms",
        "10 us",
        "0 ns",
    ]
