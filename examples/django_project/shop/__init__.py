"""The project; the Celery app is loaded with it, so that `shared_task` finds it."""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
