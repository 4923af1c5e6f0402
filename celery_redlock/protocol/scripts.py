"""
The Lua sources and the names under which nodes cache them.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from celery_redlock.protocol.commands import Script

_LUA = resources.files("celery_redlock.protocol") / "lua"

#: Functions that precede the scripts which call them.
_BEFORE: dict[Script, tuple[str, ...]] = {
    Script.ACQUIRE: ("identity", "guard", "slots", "pauses", "wait_queue", "turns"),
    Script.RAISE: ("identity", "guard", "slots"),
    Script.RELEASE: ("slots", "pauses", "wait_queue"),
    Script.ENQUEUE: ("slots", "pauses", "wait_queue"),
    Script.PAUSE: ("slots", "pauses", "wait_queue"),
}


def _joined(*parts: str) -> str:
    return "".join((_LUA / f"{part}.lua").read_text() for part in parts)


#: Source of each command's script.
SOURCE: dict[Script, str] = {
    script: _joined(*_BEFORE.get(script, ()), script.value) for script in Script
}

#: SHA-1 of the source, which is what EVALSHA takes.
SHA: dict[Script, str] = {
    script: hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    for script, source in SOURCE.items()
}

#: Lets a brand-new node vote at once; used by `celery-redlock init`.
ARM_SOURCE: str = _joined("identity", "arm")

#: Begins the quarantine of a master that was replaced meanwhile.
LEAD_SOURCE: str = _joined("identity", "lead")
