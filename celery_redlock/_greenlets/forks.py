"""
Functions that run at a fork, where processes fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def register_at_fork(**calls: Callable[[], object]) -> None:
    """Call `os.register_at_fork`; do nothing where processes do not fork (Windows)."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)
