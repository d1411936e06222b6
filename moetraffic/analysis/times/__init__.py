"""Times: intervals, completion times, time breakdown, traffic by iteration."""
