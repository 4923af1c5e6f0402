"""
For the people who run it: what is wrong with nodes, what they hold, and how to free it.
"""
