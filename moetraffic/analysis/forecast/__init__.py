"""Forecasts of loads and matrices, their evaluation, and bounds on predictability."""
