"""
The broker's and the backend's containers, as hosts that can be paused like the others.
"""

from __future__ import annotations

from pytest_celery import RabbitMQContainer, RedisContainer

from celery_redlock.testing.containers.base import HostContainer

__all__ = ["RabbitMQHost", "RedisHost"]


class RabbitMQHost(HostContainer, RabbitMQContainer):
    """RabbitMQ as the broker."""

    @classmethod
    def initial_env(cls) -> dict[str, str]:
        """Return the environment: log to the console, where pytest-celery looks for readiness."""
        # Not every build of the image does so by itself.
        return {**super().initial_env(), "RABBITMQ_LOGS": "-"}


class RedisHost(HostContainer, RedisContainer):
    """Redis as the broker, or as the backend."""
