"""Results of a replay: durations, fidelity, metrics, the replayed trace, tables."""
