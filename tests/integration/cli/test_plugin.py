"""A process of the `celery` command whose app only sets `redlock_tasks` or `redlock_dedupe`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import forked

# A process of its own: in that of the tests the package is loaded.
COMMAND = """
import json, sys
import celery.bin.celery  # as `celery` does, before it loads the app
from celery import Celery, signals

given = json.loads(sys.argv[1])
for name in given["imports"]:
    __import__(name)
app = Celery("vendor", broker="memory://", backend="cache+memory://", set_as_current=False)
app.conf.update(redlock_nodes=["memory://one"], **given["conf"])

@app.task(name="vendor.report")
def report():
    pass

app.finalize()
classes = [cls.__name__ for cls in type(app.tasks["vendor.report"]).__mro__]
print(json.dumps({"locks": "RedlockTask" in classes,
                  "loaded": "celery_redlock.tasks" in sys.modules}))
signals.celeryd_after_setup.send(sender="worker@host", instance=None, conf=app.conf)
"""
PLAIN = {"redlock_tasks": {"vendor.*": {"lock_key": True}}}
UNIQUE = {"redlock_tasks": {"vendor.*": {"lock_key": True, "lock_mode": "until_executed"}}}


def started(conf: dict[str, Any], *imports: str) -> dict[str, Any]:
    """Start the process, and tell what it did with the task."""
    given = json.dumps({"conf": conf, "imports": imports})
    done = forked.run("-c", COMMAND, given, loaded=forked.CELERY)
    told: dict[str, Any] = json.loads(done.stdout)
    return {**told, "log": done.stderr}


def test_a_pattern_makes_tasks_lock() -> None:
    assert started(PLAIN)["locks"]


@pytest.mark.parametrize("conf", [UNIQUE, {"redlock_dedupe": True}])
def test_a_setting_that_publishers_need_as_well_is_warned_of(conf: dict[str, Any]) -> None:
    (setting,) = conf
    log = started(conf)["log"]
    assert log.startswith(f"{setting} of app 'vendor' takes effect in this process because")
    assert "Write import celery_redlock.tasks where the app is made." in log


def test_a_pattern_that_only_workers_need_is_not_warned_of() -> None:
    assert started(PLAIN)["log"] == ""


def test_an_app_that_imports_the_package_is_not_warned_of() -> None:
    assert started(UNIQUE, "celery_redlock.tasks")["log"] == ""


def test_an_app_without_these_settings_loads_no_task_layer() -> None:
    assert not started({})["loaded"]


def test_an_app_that_was_finalized_before_the_command_was_loaded_locks_as_well() -> None:
    late = """
from celery import Celery, signals

app = Celery("vendor", broker="memory://", set_as_current=False)
app.conf.update(redlock_nodes=["memory://one"], redlock_tasks={"vendor.*": {"lock_key": True}})
@app.task(name="vendor.report")
def report():
    pass

app.finalize()
import celery.bin.celery  # as `app.worker_main()` does
signals.worker_init.send(sender=app.WorkController)
classes = [cls.__name__ for cls in type(app.tasks["vendor.report"]).__mro__]
print("RedlockTask" in classes, len(app.steps["worker"]))
"""
    done = forked.run("-c", late, loaded=forked.CELERY)
    assert done.stdout == "True 2\n"
