"""Coroutines take locks on in-memory nodes and on real servers."""

from __future__ import annotations

from tests.integration.protocol.conftest import nodes, servers

__all__ = ["nodes", "servers"]
