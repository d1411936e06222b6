"""Convergence: change points, drift, trends and transients of a run."""
