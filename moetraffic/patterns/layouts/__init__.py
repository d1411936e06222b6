"""Parallel layouts: groups of ranks, schedules, configurations and placements."""
