"""
Lock nodes and workers in containers, as components for pytest-celery.

For tests that need separate hosts: kill, freeze or restart a node or a worker, or cut one off from
the other. Needs `pip install "celery-redlock[containers]"` and a Docker engine.

In the `conftest.py` at the root of a suite:

```python
pytest_plugins = ["celery_redlock.testing.containers.plugin"]
```

Then a `celery_setup` of pytest-celery has five lock nodes beside its broker and backend. Its
workers have this package installed, and both sides have `redlock_nodes` set:

```python
def test_a_task_outlives_two_nodes(celery_setup, celery_redlock_cluster):
    celery_redlock_cluster[0].kill()
    celery_redlock_cluster.cut_off(celery_setup.worker, 1)
    assert settle.delay(7).get(timeout=30) == "settled"
```

`celery_redlock.testing.containers.plugin` has the fixtures to override. Limit: all containers share
one kernel and one clock. The remains of a killed run have the label `creator=celery-redlock`:
remove them with `docker rm --force` and `docker network prune --filter`.
"""

from celery_redlock.testing.containers.nodes import (
    RedlockNodeContainer,
    RedlockTestCluster,
    RedlockTestNode,
)
from celery_redlock.testing.containers.worker import (
    RedlockTestSetup,
    RedlockTestWorker,
    RedlockWorkerContainer,
)

__all__ = [
    "RedlockNodeContainer",
    "RedlockTestCluster",
    "RedlockTestNode",
    "RedlockTestSetup",
    "RedlockTestWorker",
    "RedlockWorkerContainer",
]
