"""Policies that shift several jobs in time, so that they use shared links in turn."""
