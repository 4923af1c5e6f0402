"""
What becomes of a message that a worker received: it runs, waits, goes back, or ends here.
"""
