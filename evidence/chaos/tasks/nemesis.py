"""The nemesis of the task layer: nodes as in the lock layer, and workers and publishers."""

from __future__ import annotations

from evidence.chaos.history import now
from evidence.chaos.nemesis import NodeNemesis, Progress
from evidence.chaos.schedule import Fault
from evidence.chaos.tasks.processes import TaskCrew

_STARTS_WITHIN = 30.0


class TaskNemesis(NodeNemesis):
    """Breaks nodes, networks, workers and publishers, and mends everything in the end."""

    breaks = "workers and publishers"
    _crew: TaskCrew

    def _on_worker(self, fault: Fault) -> Progress:
        slot = fault.targets[0]
        self._busy_workers.add(slot)
        yield from self._until_ready(slot)
        self._journal.note("process fault", kind=fault.kind, slot=slot)
        if fault.kind == "kill child":
            self._crew.kill_child(slot)
            yield 0.2
        elif "freeze" in fault.kind:
            self._crew.freeze(slot)
            yield fault.seconds
            self._crew.go_on(slot)
        else:
            if fault.kind.startswith("terminate"):
                self._crew.ask_to_end(slot)
                yield from self._crew.await_end(slot)
            else:
                self._crew.kill(slot)
            self._crew.replace(slot)
            yield from self._until_ready(slot)
        self._journal.note("process fault over", slot=slot)
        self._busy_workers.discard(slot)

    def _until_ready(self, slot: int) -> Progress:
        deadline = now() + _STARTS_WITHIN
        while not self._crew.ready(slot) and self._crew.alive(slot) and now() < deadline:
            yield 0.1
