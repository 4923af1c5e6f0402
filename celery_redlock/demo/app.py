"""
What `celery -A celery_redlock.demo.app worker` finds.
"""

from __future__ import annotations

from celery_redlock.demo.bank import make_app
from celery_redlock.demo.scene import Scene

app = make_app(Scene.from_environment())
