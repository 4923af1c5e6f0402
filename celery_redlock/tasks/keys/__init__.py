"""
From the arguments of a call to the names of its locks.
"""
