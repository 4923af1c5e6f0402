"""
Compute for a share of the time, and talk to nobody: `python -m bench.busy SHARE`.
"""

from __future__ import annotations

import sys
import time

#: Seconds of a burst and the rest after it.
_PERIOD = 0.01


def main() -> None:
    """Run until the process is ended."""
    share = min(float(sys.argv[1]), 1.0)
    print("busy", flush=True)
    while True:
        end = time.thread_time() + share * _PERIOD
        while time.thread_time() < end:
            pass
        time.sleep((1 - share) * _PERIOD)


main()
