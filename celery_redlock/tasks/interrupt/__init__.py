"""
What a request takes and holds, how a running body is reached, and how it all is let go.
"""
