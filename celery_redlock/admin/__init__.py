"""
For operators: what is wrong with nodes, which locks they hold, and how to free them.
"""
