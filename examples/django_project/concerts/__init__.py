"""Concerts, and who goes there."""
