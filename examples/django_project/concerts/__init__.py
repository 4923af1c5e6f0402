"""Concerts and their customers."""
