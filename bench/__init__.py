"""
Measurements against peers and against ourselves, each a ratio taken side by side in one run.
"""
