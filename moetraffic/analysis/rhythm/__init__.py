"""On-off statistics: periods, cycles, bursts and gaps of traffic in time."""
