"""Hooks on expert routers."""
