"""
Native threads beside greenlets: unpatched primitives, polls and wake-ups.
"""
