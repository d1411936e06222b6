"""Scheduling policies, the networks that serve their plans, and their evaluation."""
