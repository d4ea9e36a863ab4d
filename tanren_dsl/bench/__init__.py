"""Measured comparisons: a real server, its clients, and what the difference between two policies is."""
