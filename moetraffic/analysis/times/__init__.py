"""Times of calls and steps: completion, breakdown, ratios of two runs, projection."""
