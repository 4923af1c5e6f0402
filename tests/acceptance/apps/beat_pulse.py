"""A pulse: stamps in a file, which tell afterwards when a process did not get to run."""

from __future__ import annotations

import os
import struct
import threading
import time

from tests.acceptance.apps.visible import instant

STAMP = struct.Struct("=d")
#: Seconds; far below any interval or TTL, and next to no work.
PULSE = 0.05


def start_pulse(path: str) -> None:
    """Stamp the file for as long as this process lives."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def pulse() -> None:
        while True:
            os.write(file, STAMP.pack(instant()))
            time.sleep(PULSE)

    threading.Thread(target=pulse, daemon=True, name="pulse").start()
