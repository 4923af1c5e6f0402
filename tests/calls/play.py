"""Play one scene in a process that knows the servers: `python -m tests.calls.play SCENE COUNT`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from tests.calls.scenes import SCENES

scene, count = sys.argv[1:]
figures = SCENES[scene](int(count))
print(json.dumps(asdict(figures)))
sys.exit(bool(figures.broken))
