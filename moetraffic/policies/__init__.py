"""Scheduling policies evaluated on real traffic: plan, serve, compare.

A policy plans circuits, transmission or placement from what is known in time; the plan
is served against the true traffic.  :mod:`.policy` has the two methods of a policy,
:mod:`.catalog` the built-in ones and those of other packages.
"""
