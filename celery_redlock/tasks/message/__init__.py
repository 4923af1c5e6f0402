"""
What is known of a message by itself: its header, its tick, its owner values, its names on nodes.
"""
