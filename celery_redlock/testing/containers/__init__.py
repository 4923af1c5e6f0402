"""
Lock nodes and workers in containers, as components for pytest-celery.

For tests that need hosts of their own: kill, pause or restart a node or a worker, or cut one off
from the other. Needs `pip install "celery-redlock[containers]"` and a Docker engine.

In the `conftest.py` at the root of a suite:

```python
pytest_plugins = ["celery_redlock.testing.containers.plugin"]
```

From then on a `celery_setup` of pytest-celery has five lock nodes beside its broker and backend,
its workers have this package installed, and `redlock_nodes` is set on both sides:

```python
def test_a_task_outlives_two_nodes(celery_setup, celery_redlock_cluster):
    celery_redlock_cluster[0].kill()
    celery_redlock_cluster.cut_off(celery_setup.worker, 1)
    assert settle.delay(7).get(timeout=30) == "settled"
```

The fixtures to override are in `celery_redlock.testing.containers.plugin`. What this cannot show:
all containers share one kernel and one clock. What a run leaves that was killed has the label
`creator=celery-redlock`: remove it with `docker rm --force` and `docker network prune --filter`.
"""

from celery_redlock.testing.containers.celery_setup import RedlockTestSetup
from celery_redlock.testing.containers.cluster import RedlockTestCluster
from celery_redlock.testing.containers.node import RedlockNodeContainer, RedlockTestNode
from celery_redlock.testing.containers.worker import RedlockTestWorker, RedlockWorkerContainer

__all__ = [
    "RedlockNodeContainer",
    "RedlockTestCluster",
    "RedlockTestNode",
    "RedlockTestSetup",
    "RedlockTestWorker",
    "RedlockWorkerContainer",
]
