"""Clients of two versions that lock the same keys on the same nodes."""
