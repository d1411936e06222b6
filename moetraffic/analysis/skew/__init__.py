"""Skew: how unevenly load is spread over experts, ranks and rank pairs."""
