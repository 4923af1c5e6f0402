"""
`celery-redlock init`: arm brand-new nodes.
"""

from __future__ import annotations

import sys
import warnings

from celery_redlock.core import arm_nodes

__all__ = ["init_nodes"]


def init_nodes(nodes: str, *, force: bool) -> int:
    """
    Arm the nodes, print one line for each, and return 0 if all of them vote now.

    Raises:
        ConfigurationError: the URLs cannot be used.
    """
    with warnings.catch_warnings(record=True) as advice:
        warnings.simplefilter("always")
        answers = arm_nodes(nodes, force=force)
    for warning in advice:
        print(f"celery-redlock: {warning.message}", file=sys.stderr)
    width = max(len(answer.name) for answer in answers)
    for answer in answers:
        print(f"{answer.name:<{width}}  {answer.state:<12}{answer.detail}")
    return 0 if all(answer.serves for answer in answers) else 1
