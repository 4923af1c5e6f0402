"""
What tries to break the lock, in one run with one verdict: models, simulation and planted faults.
"""
