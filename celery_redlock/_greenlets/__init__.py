"""
Native threads beside greenlets: unpatched functions, threads, polls and wake-ups.
"""
