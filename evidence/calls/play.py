"""Play one scene, knowing the servers: `python -m evidence.calls.play SCENE COUNT`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from evidence.calls.scenes import SCENES

scene, count = sys.argv[1:]
figures = SCENES[scene](int(count))
print(json.dumps(asdict(figures)))
sys.exit(bool(figures.broken))
