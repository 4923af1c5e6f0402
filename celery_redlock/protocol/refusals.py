"""
What a node's error to one of our scripts means for the user that it came from.
"""

from __future__ import annotations

import re

from celery_redlock.protocol.commands import Script
from celery_redlock.protocol.scripts import SOURCE
from celery_redlock.protocol.texts import shortened

#: What follows where a node refuses a script that nobody waits for or needs a quorum of.
CONSEQUENCES = {
    Script.RELEASE: "Locks that are released stay taken there until their TTL ends",
    Script.EXTEND: "Leases and reservations end there although they are extended",
    Script.HEAL: "Keys of leases that it has lost are not set there again",
}

_NAMED = re.compile(r"permissions to run the '([^']+)' command").search
_IN_SCRIPT = re.compile(r"can't run this command or subcommand.*user_script:(\d+)").search
_calls = re.compile(r"redis\.p?call\('(\w+)'").findall
_KEYS = re.compile(r"permissions to access (?:a key|one of the keys)").search


def explain_refusal(script: Script, error: str) -> str:
    """Return a node's error to a script, shortened, with the right that its user lacks."""
    right = _missing_right(script, error)
    grant = f" (script {script}; grant the user {right})" if right else ""
    return shortened(error) + grant


def _missing_right(script: Script, error: str) -> str:
    if named := _NAMED(error):
        return f"+{named[1].lower()}"
    if _KEYS(error):
        return "its lock keys and redlock-meta:* (~PATTERN)"
    if place := _IN_SCRIPT(error):
        # Redis 7.0 names the line of the script alone.
        line = SOURCE[script].splitlines()[int(place[1]) - 1 : int(place[1])]
        return " ".join(f"+{call.lower()}" for call in _calls("".join(line)))
    return ""
