"""Helpers that every level of tests shares."""
