"""
The demo: five lock nodes, a real worker, and trouble.
"""

from celery_redlock.demo.play import run_demo

__all__ = ["run_demo"]
