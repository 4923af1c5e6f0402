"""Tasks that call other tasks, fork, and look at their own lease."""

from __future__ import annotations

import contextlib
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
            # Nothing that waits: an event loop in the child would run the worker's other greenlets,
            # on connections that both have. And nothing of the worker must run after this.
            code = 4
            with contextlib.suppress(Exception):
                code = 2 * self.lease.is_valid + self.lease.release()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        valid, released = divmod(os.waitstatus_to_exitcode(status), 2)
        note(key, "child", valid=valid, released=released)
        note(key, "child ended", valid=self.lease.is_valid)
        await_gate(key)
        return f"still valid: {self.lease.is_valid}"
