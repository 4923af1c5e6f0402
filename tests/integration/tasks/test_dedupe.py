"""`redlock_dedupe`: every task of a worker runs a message once."""

from __future__ import annotations

from tests.support import forked

WITHOUT = """
from celery import Celery, signals
from celery_redlock import RedlockTask
app = Celery(broker="memory://", set_as_current=False)
app.conf.redlock_nodes = ["memory://one"]
@app.task(base=RedlockTask, name="job", lock_key="k")
def task():
    return "ran"
app.finalize()
task.delay()
print(task.apply().get(), len(signals.task_prerun.receivers or ()),
      len(signals.before_task_publish.receivers or ()))
"""


def test_without_it_a_locking_task_hears_of_no_beginning_and_of_one_publish() -> None:
    assert forked.run("-c", WITHOUT).stdout.split() == ["ran", "0", "0"]
