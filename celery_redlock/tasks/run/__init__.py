"""
The worker's side of a message: it runs, waits, is requeued, or ends here.
"""
