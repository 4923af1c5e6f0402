"""The Celery app that the acceptance tests' workers load."""
