"""Tests, by the packages they test."""
