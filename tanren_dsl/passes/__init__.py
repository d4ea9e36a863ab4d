"""Rewrites that make the normal form, and analyses of it: one a file."""
