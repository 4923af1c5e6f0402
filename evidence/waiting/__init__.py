"""
A model of a design for waiting in which a place in line is a lease; the package does not have it.
"""
