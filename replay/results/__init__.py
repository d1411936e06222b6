"""Results of a replay: durations, fidelity, the replayed trace, tables."""
