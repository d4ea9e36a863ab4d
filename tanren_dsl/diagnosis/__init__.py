"""Diagnosis: the decisions of a policy that cost most, and what they have in common."""
