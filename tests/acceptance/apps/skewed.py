"""
The `celery` command in a process whose wall clock is wrong by as much as the stage says.

Only what Python code reads is shifted, which is all that beats and workers read. The clocks that
leases and pauses are measured with stay as they are.
"""

from __future__ import annotations

import time

import time_machine
from celery.__main__ import main

from tests.acceptance.apps.visible import stage

if __name__ == "__main__":
    time_machine.travel(time.time() + stage()["skew"], tick=True).start()
    # The shifted clock stands still until it is read for the first time.
    time.time()
    main()
