"""
What each kind of fault does to a running history, and which assumption it breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evidence.simulation.plan import Fault

if TYPE_CHECKING:
    from evidence.simulation.world import World


def inflict(world: World, fault: Fault) -> None:
    """Let one thing go wrong now."""
    if world.healed:
        return
    world.trace(f"FAULT {fault.kind} {_where(fault)}")
    if fault.sentinel >= 0:
        _on_sentinel(world, fault)
    elif fault.node >= 0:
        _on_node(world, fault)
    else:
        _on_machine(world, fault)


def _where(fault: Fault) -> str:
    parts = []
    if fault.node >= 0:
        parts.append(f"node {fault.node}")
    if fault.sentinel >= 0:
        parts.append(f"sentinel {fault.sentinel}")
    if fault.machine >= 0:
        parts.append(f"client {fault.machine}")
    if fault.seconds:
        parts.append(f"{fault.seconds:.3f} s")
    return " ".join([*parts, fault.detail]).strip()


def _on_node(world: World, fault: Fault) -> None:
    node, now = world.nodes[fault.node], world.scheduler.now
    kind = fault.kind
    if kind == "crash":
        if node.down:
            return
        for wire in world.network.wires(None, node.index):
            wire.refused()
        node.crash()
        world.scheduler.after(fault.seconds, world.start_node, node, fault.detail)
    elif kind == "snapshot":
        node.take_snapshot()
    elif kind == "stop":
        node.stop(now + fault.seconds)
    elif kind == "flush":
        node.state.lose_data()
        world.history.data_lost()
    elif kind == "flip":
        node.change_role()
        if fault.detail == "read only":
            node.read_only = True
            world.scheduler.after(fault.seconds, world.make_master, node)
    elif kind == "script flush":
        node.forget_scripts()
    elif kind == "node step":
        node.clock.wall_offset += fault.seconds
        world.history.node_clock_stepped(fault.seconds)
    elif kind == "replicate":
        world.groups[fault.node].replicate()
    elif kind == "promote":
        world.promote(fault.node, fault.seconds)
    elif kind in ("break", "partition", "slow"):
        _on_link(world, fault, node.index)
    else:
        raise ValueError(kind)


def _on_sentinel(world: World, fault: Fault) -> None:
    sentinel = world.sentinels[fault.sentinel]
    if fault.kind == "stop":
        sentinel.stop(world.scheduler.now + fault.seconds)
    else:
        _on_link(world, fault, sentinel.index)


def _on_link(world: World, fault: Fault, server: int) -> None:
    now = world.scheduler.now
    slots = range(len(world.machines)) if fault.machine < 0 else (fault.machine,)
    for slot in slots:
        machine = world.machines[slot]
        if fault.kind == "break":
            for wire in world.network.wires(machine, server):
                wire.break_off(machine.random.random() * world.plan.delay * 2)
        elif fault.kind == "partition":
            world.network.cut(machine, server, now + fault.seconds)
        else:
            until = now + world.plan.ttl
            world.network.slow(machine, server, until, fault.seconds)


def _on_machine(world: World, fault: Fault) -> None:
    machine = world.machines[fault.machine]
    if fault.kind in ("pause", "suspend"):
        suspend = fault.kind == "suspend"
        machine.freeze_at_read(fault.count, fault.seconds, suspend=suspend)
    elif fault.kind == "isolate":
        for server in world.network.servers.values():
            until = world.scheduler.now + fault.seconds
            world.network.cut(machine, server.index, until)
    elif fault.kind == "kill":
        world.kill(fault.machine)
        world.scheduler.after(fault.seconds, world.start_machine, fault.machine)
    elif fault.kind == "wall step":
        machine.clock.wall_offset = fault.seconds
    else:
        raise ValueError(fault.kind)
