"""Tasks that call other tasks, fork, and look at their own lease."""

from __future__ import annotations

import os
from typing import Any

from celery_redlock import RedlockTask, current_lease
from tests.acceptance.apps.stage import app, await_gate, note, visiting


@app.task(base=RedlockTask, bind=True, name="tell_lease", lock_key="{key}")
def tell_lease(self: Any, key: str) -> dict[str, Any]:
    with visiting(self, key):
        return {
            "own": self.lease.fencing_token,
            "current": current_lease().fencing_token,
            "request": self.request.fencing_token,
            "same": self.lease is current_lease(),
            "key": self.lease.key,
            "owner": self.lease.owner,
        }


@app.task(base=RedlockTask, bind=True, name="call_itself", lock_key="{key}")
def call_itself(self: Any, key: str, depth: int = 1) -> str:
    if depth == 0:
        note(key, "nested")
        return "nested"
    with visiting(self, key):
        answer = self(key, depth=0)
        await_gate(key)
        return f"{answer}, still valid: {self.lease.is_valid}"


@app.task(bind=True, name="call_plainly")
def call_plainly(self: Any, key: str) -> str:
    """Call a locked task as a function."""
    return app.tasks["hold"](key)


@app.task(bind=True, name="apply_eagerly")
def apply_eagerly(self: Any, key: str) -> str:
    """Run a locked task in this process through `apply()`."""
    return str(app.tasks["hold"].apply((key,)).result)


@app.task(base=RedlockTask, bind=True, name="fork", lock_key="{key}")
def fork(self: Any, key: str) -> str:
    with visiting(self, key):
        child = os.fork()
        if child == 0:
            # Nothing of the worker must run in the child but what is noted here.
            try:
                note(key, "child", valid=self.lease.is_valid, released=self.lease.release())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        note(key, "child ended", valid=self.lease.is_valid)
        await_gate(key)
        return f"still valid: {self.lease.is_valid}"
