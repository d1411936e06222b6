"""Results of a replay: durations, comparison with baselines, sentences, its trace."""
