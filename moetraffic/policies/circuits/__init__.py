"""Policies for circuits under a reconfiguration delay."""
