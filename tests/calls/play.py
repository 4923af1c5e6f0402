"""Play one scene in a process that knows the servers: `python -m tests.calls.play SCENE COUNT`."""

from __future__ import annotations

import json
import sys
import time

from tests.calls.scenes import FAULTS, SCENES

scene, count = sys.argv[1:]
begun = time.monotonic()
figures = SCENES[scene](int(count))
print(f"{scene}: {json.dumps(figures)} ({time.monotonic() - begun:.0f} s)")
sys.exit(any(figures.get(fault) for fault in FAULTS))
