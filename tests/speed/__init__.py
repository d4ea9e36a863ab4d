"""Measurements: ratios of two things timed in turn in one run, medians of several. Not tests."""
