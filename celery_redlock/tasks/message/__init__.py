"""
A message by itself: its header, its tick, its owner values, its keys on the nodes.
"""
