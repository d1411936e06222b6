"""Policies that place and replicate experts on ranks."""
