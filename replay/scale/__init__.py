"""Scaling a replay: other ranks or other byte counts than were captured."""
