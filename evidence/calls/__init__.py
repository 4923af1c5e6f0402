"""Calls of unique tasks under load: which of them run, how often, and in which order."""
