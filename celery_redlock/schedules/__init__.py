"""
When a schedule of Celery is due, whichever beat asks.
"""
