"""
`celery-redlock init`: arm brand-new nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from celery_redlock.cli.output import print_json, printable
from celery_redlock.core import arm_nodes
from celery_redlock.transport import advice_about, parse_nodes


def init_nodes(nodes: str | Sequence[str], *, force: bool, as_json: bool) -> int:
    """
    Arm the nodes, print one line for each, and return 0 if all of them vote now.

    Args:
        nodes: their URLs.
        force: arm every node that answers, whatever its record.
        as_json: print one JSON object instead of lines.

    Raises:
        ConfigurationError: the URLs cannot be used.
    """
    advice = advice_about(parse_nodes(nodes))
    if advice:
        print(f"celery-redlock: {advice}", file=sys.stderr)
    answers = arm_nodes(nodes, force=force)
    if as_json:
        print_json(
            {
                "nodes": [
                    {
                        "url": answer.name,
                        "state": answer.state,
                        "votes": answer.serves,
                        "detail": answer.detail,
                    }
                    for answer in answers
                ]
            }
        )
    else:
        width = max(len(answer.name) for answer in answers)
        for answer in answers:
            print(f"{answer.name:<{width}}  {answer.state:<12}{printable(answer.detail)}")
    return 0 if all(answer.serves for answer in answers) else 1
