"""
Raising `LeaseLost` in a running body, by the means of its pool.
"""
