"""
Messages that wait for keys where a place in line is a lease that the keeper of a message extends.

Nodes, main processes of workers (one process each for bodies), the broker, and what is under way
between them. There is no clock: what a clock decides happens at any moment. When it is `calm`, no
further fault happens, no body ends, those that are gone have lapsed, and each worker attends once
more: after this one period nobody may be asleep that could run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from evidence.models.explorer import Label, State, ViolationError
from evidence.models.state import Table

#: Where a message is. `STARTED`: its worker's main process has given it to the pool.
BROKER, HELD, STARTED, TRYING, UNDOING, RUNNING, RELEASING, DONE = range(8)
_IN_PROCESS = frozenset({TRYING, UNDOING, RUNNING, RELEASING})

#: Owners that are no message.
FREE, ORPHAN = -1, 9
#: An attempt at a node; or the slot that it granted.
PENDING, REFUSED, UNHEARD = -1, -2, -3
#: An attend at a node; or the mask that it answered, which is on its way.
ASKS, OVER = -2, -1

#: Kinds of moves.
PLAIN, ATTEMPT, GRANT, FAULT, BODY, TIME = range(6)

Message = tuple[int, int, Any, int]
#: Owners of all slots; those present by worker, and of workers that are gone; quarantine.
Node = tuple[tuple[int, ...], tuple[int, ...], bool]
#: Whom it names, and how far it is at each node.
Attend = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSetting:
    """
    What is explored.

    Attributes:
        wants: the keys of each message, the one that waits longest first.
        slots: of each key; those beyond have one.
        rates: keys whose slots stay taken when a body ends.
        down: nodes that never answer.
        running: messages that run at first, each at a worker of its own, from the last worker on.
        fresh: messages that have not waited yet: they try at once.
        gone: messages that nobody keeps, present on all nodes.
        first: how many of each set of keys a worker names.
        attends: how many attends of a worker may be under way.
        answers_apart: answers to attends are under way as well.
        hops: a node looks at those that share a key, at those that share one with them, and so on.
        blocks: presences that may end although the worker keeps the messages.
        renews: messages that are sent again when they are over.
        at_once: an attempt reaches all nodes in one moment.
        wanders: a message may be received by any worker; otherwise by one of its own, and by the
            next one after it was given back.
        late_wakes: a wake-up may come when its message has begun or is elsewhere, and be too early
            or too late for it; otherwise those are left out.
        never_calm: nothing is checked that needs calm.
        prompt: there are no faults, and no attends but those of an arrival, of one that gives back,
            and where some nodes name somebody: nobody may need a period.
        broken: rules that are taken back.
    """

    name: str
    wants: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...] = ()
    rates: frozenset[int] = frozenset()
    nodes: int = 1
    workers: int = 2
    down: frozenset[int] = frozenset()
    fair: bool = True
    running: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    first: int = 16
    attends: int = 1
    answers_apart: bool = False
    hops: int = 4
    losses: int = 0
    kills: int = 0
    restarts: int = 0
    blocks: int = 0
    renews: frozenset[int] = frozenset()
    at_once: bool = False
    wanders: bool = False
    late_wakes: bool = False
    never_calm: bool = False
    prompt: bool = False
    broken: frozenset[str] = frozenset()

    def without(self, *rules: str) -> LineSetting:
        """Return the setting with rules taken back."""
        from dataclasses import replace

        name = "-".join((self.name, *rules))
        return replace(self, name=name, broken=self.broken | set(rules))


class Scene(NamedTuple):
    """
    Everything at one moment.

    Attributes:
        messages: place, worker, and of one that is kept the nodes that name it, of one that tries
            what nodes said and who comes before it, of one that runs or ends some nodes.
        nodes: what they know.
        attends: of each worker those under way, the oldest first.
        wakes: of each node the wake-ups under way.
        due: when it is calm, whether each worker attends once more; otherwise empty.
        left: faults that may still happen.
    """

    messages: tuple[Message, ...]
    nodes: tuple[Node, ...]
    attends: tuple[tuple[Attend, ...], ...]
    wakes: tuple[int, ...]
    due: tuple[bool, ...]
    left: tuple[int, int, int, int]


Move = tuple[str, Scene, int]
_NEW: Message = (BROKER, 0, 1, 0)
_BACK: Message = (BROKER, 0, 0, 0)
_DONE: Message = (DONE, 0, 0, 0)


def _put(sequence: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*sequence[:at], value, *sequence[at + 1 :])


def _bits(mask: int) -> Iterator[int]:
    at = 0
    while mask:
        if mask & 1:
            yield at
        mask, at = mask >> 1, at + 1


def _kind(before: Scene, after: Scene) -> int:
    """Return whether a message begins to try."""
    started = any(
        was[0] == HELD and now[0] != HELD
        for was, now in zip(before.messages, after.messages, strict=True)
    )
    return ATTEMPT if started else PLAIN


class Line:
    """The model of a setting; see `evidence.models.explorer`."""

    def __init__(self, setting: LineSetting) -> None:
        self.setting = setting
        self.reached: set[str] = set()
        self.scenes = Table()
        self._broken = setting.broken
        self._walked: dict[tuple[tuple[int, ...], int], int] = {}
        self._all = range(len(setting.wants))
        self._nodes = range(setting.nodes)
        self._quorum = setting.nodes // 2 + 1
        keys = 1 + max(key for wants in setting.wants for key in wants)
        limits = [*setting.slots, *[1] * keys][:keys]
        begins = [sum(limits[:key]) for key in range(keys)]
        self._slots = [range(begins[key], begins[key] + limits[key]) for key in range(keys)]
        self._shares = [
            sum(1 << other for other in self._all if set(wants) & set(setting.wants[other]))
            for wants in setting.wants
        ]

    def initial(self) -> State:
        """Return the first state."""
        setting, owners = self.setting, [FREE] * self._slots[-1].stop
        messages = []
        for message in self._all:
            if message in setting.running:
                worker = setting.workers - 1 - setting.running.index(message)
                messages.append((RUNNING, worker, (1 << setting.nodes) - 1, 0))
                for key in setting.wants[message]:
                    slot = next(slot for slot in self._slots[key] if owners[slot] == FREE)
                    owners[slot] = message
            elif message in setting.gone:
                messages.append(_DONE)
            else:
                messages.append(_NEW if message in setting.fresh else _BACK)
        present = (0,) * setting.workers + (sum(1 << message for message in setting.gone),)
        first = Scene(
            tuple(messages),
            tuple((tuple(owners), present, False) for _ in self._nodes),
            ((),) * setting.workers,
            (0,) * setting.nodes,
            (False,) * setting.workers if setting.prompt else (),
            (setting.losses, setting.kills, setting.restarts, setting.blocks),
        )
        return (self.scenes.number(first),)

    def moves(self, state: State) -> Iterator[tuple[State, Label, tuple[int, ...]]]:
        """Yield each move; see `evidence.models.explorer.Model`."""
        scene: Scene = self.scenes.things[state[0]]
        is_quiet = bool(scene.due)
        for text, then, kind in self.steps(scene):
            is_quiet = is_quiet and kind > GRANT
            self._check_exclusion(then, text)
            yield (self.scenes.number(self.bare(then)),), (text, ()), ()
        if is_quiet and (asleep := self._asleep(scene)):
            names = " and ".join(f"m{message}" for message in asleep)
            raise ViolationError(("one period has passed", ()), f"{names} could run and is asleep")

    def bare(self, scene: Scene) -> Scene:
        """Leave out wake-ups that do nothing."""
        if self.setting.late_wakes or not any(scene.wakes):
            return scene
        kept = sum(1 << at for at in self._all if scene.messages[at][0] == HELD)
        return scene._replace(wakes=tuple(wakes & kept for wakes in scene.wakes))

    # What a node decides.

    def _free(self, owners: tuple[int, ...]) -> list[int]:
        return [sum(owners[slot] == FREE for slot in slots) for slots in self._slots]

    def could_run(self, node: Node, message: int) -> bool:
        """Return whether a message's keys are free, whoever else waits."""
        free = self._free(node[0])
        return all(free[key] for key in self.setting.wants[message])

    def _walk(self, node: Node, those: int) -> int:
        """Return those that may start now: in order, each uses up its keys."""
        key = (node[0], those)
        may = self._walked.get(key)
        if may is None:
            may = self._walked[key] = self._walk_anew(node, those)
        return may

    def _walk_anew(self, node: Node, those: int) -> int:
        free, may = self._free(node[0]), 0
        for message in _bits(those):
            wants = self.setting.wants[message]
            can = all(free[key] > 0 for key in wants)
            if can:
                may |= 1 << message
            if can or "only those that could run count" in self._broken:
                for key in wants:
                    free[key] -= 1
        return may

    def _near(self, messages: int) -> int:
        """Return those that a walk looks at for the sake of some."""
        for _ in range(self.setting.hops):
            near = 0
            for message in _bits(messages):
                near |= self._shares[message]
            messages = near
        return messages

    @staticmethod
    def present(node: Node) -> int:
        """Return who is present on a node."""
        present = 0
        for those in node[1]:
            present |= those
        return present

    def _woken(self, before: Node, after: Node, cause: str, message: int) -> int:
        """Return whom a node wakes because of a change that concerns a message."""
        if after[2] or f"{cause} wakes" in self._broken:
            return 0
        near, here = self._near(1 << message), self.present(after)
        if cause == "a release" and "all keys together" in self._broken:
            woken = 0
            for key in self.setting.wants[message]:
                for other in _bits(here):
                    if key in self.setting.wants[other] and self.could_run(after, other):
                        woken |= 1 << other
                        break
            return woken
        return self._walk(after, here & near) & ~self._walk(before, self.present(before) & near)

    def _vote(self, node: Node, message: int) -> tuple[int, ...]:
        """Return the slots that a node grants to a message; none if it refuses."""
        owners, wants = node[0], self.setting.wants[message]
        if node[2]:
            return ()
        may = self.could_run(node, message) or "exclusion" in self._broken
        ordered = self.setting.fair or any(key in self.setting.rates for key in wants)
        if may and ordered and "order" not in self._broken:
            those = (self.present(node) | 1 << message) & self._near(1 << message)
            may = bool(self._walk(node, those) >> message & 1)
        if not may:
            return ()
        slots = []
        for key in wants:
            of_key = self._slots[key]
            turn = message % len(of_key)
            in_turn = [*of_key[turn:], *of_key[:turn]]
            slots.append(next((slot for slot in in_turn if owners[slot] == FREE), in_turn[0]))
        return tuple(slots)

    # Moves.

    def steps(self, scene: Scene) -> Iterator[Move]:
        """Yield all that may happen: how it reads, the scene then, and its kind."""
        busy = {worker for place, worker, _, _ in scene.messages if place in _IN_PROCESS}
        for message, (place, worker, what, _) in enumerate(scene.messages):
            if place == BROKER:
                workers: Iterable[int] = range(self.setting.workers)
                if not self.setting.wanders:
                    workers = [(message + worker) % self.setting.workers]
                for at in workers:
                    yield self._received(scene, message, at, is_new=bool(what))
            elif place == STARTED:
                yield from self._leaves(scene, message, worker in busy)
            elif place == TRYING:
                yield from self._asks_for_keys(scene, message)
            elif place in (UNDOING, RELEASING):
                for node in _bits(what):
                    yield from self._gives_back(scene, message, node)
            elif place == RUNNING and (self.setting.prompt or not scene.due):
                up = sum(1 << node for node in self._nodes if node not in self.setting.down)
                ended = (RELEASING, worker, up, 0)
                yield f"m{message} ends", self._moved(scene, message, ended), BODY
            elif place == DONE and message in self.setting.renews:
                yield f"m{message} is sent again", self._moved(scene, message, _NEW), PLAIN
        for worker in range(self.setting.workers):
            yield from self._attends(scene, worker)
        for node in self._nodes:
            yield from self._wakes(scene, node)
            if self.setting.prompt or not scene.due:
                yield from self._changes(scene, node)
        if not scene.due:
            yield from self._kills(scene)
            if not self.setting.never_calm and self._is_settled(scene):
                yield "it is calm", self._calm(scene), TIME

    def _moved(self, scene: Scene, message: int, to: Message) -> Scene:
        return scene._replace(messages=_put(scene.messages, message, to))

    def _due(self, scene: Scene, worker: int) -> Scene:
        """Let a worker attend at once."""
        if not scene.due:
            return scene
        return scene._replace(due=_put(scene.due, worker, True))

    def _received(self, scene: Scene, message: int, worker: int, *, is_new: bool) -> Move:
        text = f"m{message} is received by w{worker}"
        if is_new:
            return f"{text} and tries", self._started(scene, message, worker, 1), ATTEMPT
        then = self._moved(scene, message, (HELD, worker, 0, 0))
        if "an arrival attends" not in self._broken:
            then = self._due(then, worker)
        return text, then, PLAIN

    def _leaves(self, scene: Scene, message: int, is_busy: bool) -> Iterator[Move]:
        _, worker, _, is_new = scene.messages[message]
        if is_busy:
            if is_new or "a busy worker gives back" in self._broken:
                return
            if self._all_are_busy(scene) and "only where another has room" not in self._broken:
                return
            then = self._moved(scene, message, _BACK)
            if not self.setting.wanders:
                other = (worker + 1 - message) % self.setting.workers
                then = self._moved(scene, message, (BROKER, other, 0, 0))
            self.reached.add("given back")
            yield f"busy w{worker} gives m{message} back", then, ATTEMPT
            return
        then = self._started(scene, message, worker, is_new)
        yield f"m{message} tries at w{worker}", then, ATTEMPT

    def _all_are_busy(self, scene: Scene) -> bool:
        busy = {worker for place, worker, _, _ in scene.messages if place in _IN_PROCESS}
        return len(busy) == self.setting.workers

    def _asks_for_keys(self, scene: Scene, message: int) -> Iterator[Move]:
        _, _, votes, _ = scene.messages[message]
        pending = [node for node in self._nodes if votes[node] == PENDING]
        if self.setting.at_once:
            text, then = f"m{message} asks: ", scene
            kind = PLAIN
            for node in pending:
                said, then, kind = self._voted(then, message, node)
                text += said + "; "
            yield text, then, kind
            return
        for node in pending:
            yield self._voted(scene, message, node)
            if scene.left[0]:
                lost = scene._replace(left=_put(scene.left, 0, scene.left[0] - 1))
                then, _, _ = self._counted(lost, message, node, UNHEARD)
                yield f"n{node} does not hear m{message}", then, FAULT

    def _voted(self, scene: Scene, message: int, at: int) -> Move:
        node = scene.nodes[at]
        slots, absent = self._vote(node, message), self._without(node, message)
        if slots:
            owners = tuple(
                message if slot in slots else owner for slot, owner in enumerate(node[0])
            )
            after = (owners, absent[1], node[2])
            woken = self._woken(node, after, "a grant", message)
        else:
            self.reached.add("refused")
            after = node if "a refusal ends the presence" in self._broken else absent
            woken = 0
        then = scene._replace(
            nodes=_put(scene.nodes, at, after),
            wakes=_put(scene.wakes, at, scene.wakes[at] | woken & ~(1 << message)),
        )
        if "an attempt makes earlier attends void" not in self._broken:
            then = self._voided(then, message, at)
        granted = sum(1 << slot for slot in slots) if slots else REFUSED
        then, text, kind = self._counted(then, message, at, granted)
        return text, then, kind

    def _voided(self, scene: Scene, message: int, at: int) -> Scene:
        """Let a node ignore the attends that were sent before a message began to try."""
        worker = scene.messages[message][1]
        for number, (named, at_nodes) in enumerate(scene.attends[worker]):
            if at_nodes[at] == ASKS and named >> message & 1:
                scene = self._due(self._status(scene, worker, number, at, OVER), worker)
        return self._tidied(scene, worker)

    def _without(self, node: Node, message: int) -> Node:
        return node[0], tuple(those & ~(1 << message) for those in node[1]), node[2]

    def _counted(self, scene: Scene, message: int, at: int, vote: int) -> tuple[Scene, str, int]:
        _, worker, votes, elders = scene.messages[message]
        votes = _put(votes, at, vote)
        text = f"n{at} {'grants' if vote >= 0 else 'refuses'} m{message}"
        elders = self._still_before(scene, message, elders)
        to: Message = (TRYING, worker, votes, elders)
        kind = PLAIN
        if PENDING not in votes:
            got = [node for node in self._nodes if votes[node] >= 0]
            most = max((sum(votes[node] == votes[one] for node in got) for one in got), default=0)
            if most >= self._quorum:
                to, kind = (RUNNING, worker, sum(1 << node for node in got), 0), GRANT
                self.reached.add("granted")
                if elders and self.setting.fair:
                    names = " and ".join(f"m{other}" for other in _bits(elders))
                    raise ViolationError((text, ()), f"m{message} overtakes {names}")
            elif got:
                to = (UNDOING, worker, sum(1 << node for node in got), 0)
                self.reached.add("undone")
            else:
                to = _BACK
        return self._moved(scene, message, to), text, kind

    def _still_before(self, scene: Scene, message: int, elders: int) -> int:
        """Return those that are still present and able at a quorum, but for this attempt."""
        still = 0
        for other in _bits(elders):
            able = 0
            for node in scene.nodes:
                owners = tuple(FREE if owner == message else owner for owner in node[0])
                bare = (owners, node[1], node[2])
                older = self.present(node) & ((1 << other + 1) - 1)
                could = not node[2] and self._walk(bare, older) >> other & 1
                able += bool(could and not self._walk(node, older) >> other & 1)
            if able >= self._quorum and scene.messages[other][0] == HELD:
                still |= 1 << other
        return still

    def _gives_back(self, scene: Scene, message: int, at: int) -> Iterator[Move]:
        place, worker, what, _ = scene.messages[message]
        owners, present, in_quarantine = scene.nodes[at]
        rest = what & ~(1 << at)
        end = _BACK if place == UNDOING else _DONE
        to = (place, worker, rest, 0) if rest else end
        stays = [
            slot for key in self.setting.rates for slot in self._slots[key] if place == RELEASING
        ]
        freed = tuple(
            FREE if owner == message and slot not in stays else owner
            for slot, owner in enumerate(owners)
        )
        after = (freed, present, in_quarantine)
        cause = "a release" if place == RELEASING else "an undo"
        woken = self._woken(scene.nodes[at], after, cause, message)
        then = self._moved(scene, message, to)._replace(
            nodes=_put(scene.nodes, at, after),
            wakes=_put(scene.wakes, at, scene.wakes[at] | woken),
        )
        verb = "is undone" if place == UNDOING else "is released"
        yield f"m{message} {verb} on n{at}", then, PLAIN
        if scene.left[0]:
            orphaned = tuple(ORPHAN if owner == message else owner for owner in owners)
            lost = self._moved(scene, message, to)._replace(
                nodes=_put(scene.nodes, at, (orphaned, present, in_quarantine)),
                left=_put(scene.left, 0, scene.left[0] - 1),
            )
            yield f"n{at} does not hear that m{message} {verb}", lost, FAULT

    # Attends.

    def _window(self, scene: Scene, worker: int) -> int:
        """Return whom a worker names: the first of each set of keys."""
        counts: dict[Any, int] = {}
        named = 0
        for message, (place, at, _, _) in enumerate(scene.messages):
            if place == HELD and at == worker:
                wants = self.setting.wants[message]
                groups: list[Any] = [wants]
                if "the first of each set of keys" in self._broken:
                    groups = list(wants)
                if any(counts.get(group, 0) < self.setting.first for group in groups):
                    named |= 1 << message
                for group in groups:
                    counts[group] = counts.get(group, 0) + 1
        return named

    def _may_attend(self, scene: Scene, worker: int, named: int) -> bool:
        under_way = scene.attends[worker]
        if len(under_way) >= self.setting.attends:
            return False
        if not scene.due:
            if under_way:
                return under_way[-1][0] != named
            return bool(named or any(node[1][worker] for node in scene.nodes))
        return scene.due[worker]

    def _attends(self, scene: Scene, worker: int) -> Iterator[Move]:
        named = self._window(scene, worker)
        if self._may_attend(scene, worker, named):
            asks = tuple(OVER if node in self.setting.down else ASKS for node in self._nodes)
            attends = (*scene.attends[worker], (named, asks))
            then = scene._replace(attends=_put(scene.attends, worker, attends))
            if scene.due:
                then = then._replace(due=_put(scene.due, worker, False))
            yield f"w{worker} attends for {self._names(named)}", then, PLAIN
        for number, (_, at_nodes) in enumerate(scene.attends[worker]):
            for node, status in enumerate(at_nodes):
                if status >= 0:
                    then = self._status(scene, worker, number, node, OVER)
                    then = self._answered(then, worker, number, node, status)
                    text = f"w{worker} learns that n{node} names {self._names(status)}"
                    yield text, then, _kind(scene, then)
                if status == ASKS:
                    yield from self._attended(scene, worker, number, node)

    @staticmethod
    def _names(mask: int) -> str:
        return ", ".join(f"m{message}" for message in _bits(mask)) or "nobody"

    def _status(self, scene: Scene, worker: int, number: int, node: int, status: int) -> Scene:
        attends = scene.attends[worker]
        named, at_nodes = attends[number]
        attends = _put(attends, number, (named, _put(at_nodes, node, status)))
        return scene._replace(attends=_put(scene.attends, worker, attends))

    def _attended(self, scene: Scene, worker: int, number: int, at: int) -> Iterator[Move]:
        """An attend reaches a node; or it, or its answer, is lost."""
        named = scene.attends[worker][number][0]
        node = scene.nodes[at]
        was = node[1][worker]
        those = named
        if "whom it omits is absent" in self._broken:
            those |= was
        after = (node[0], _put(node[1], worker, those), node[2])
        woken = 0
        for cause, changed in (
            ("who is omitted", was & ~those),
            ("who enters", those & ~self.present(node)),
        ):
            for message in _bits(changed):
                woken |= self._woken(node, after, cause, message)
        woken &= ~named  # those are in the answer
        then = scene._replace(
            nodes=_put(scene.nodes, at, after),
            wakes=_put(scene.wakes, at, scene.wakes[at] | woken),
        )
        near = self.present(after) & self._near(named)
        answer = self._walk(after, near) & named if not node[2] else 0
        if "an older one is ignored" not in self._broken:
            for older in range(number):
                if then.attends[worker][older][1][at] == ASKS:
                    then = self._status(then, worker, older, at, OVER)
        text = f"the attend of w{worker} for {self._names(named)} reaches n{at}"
        if self.setting.answers_apart and named:
            yield text, self._status(then, worker, number, at, answer), PLAIN
        else:
            heard = self._status(then, worker, number, at, OVER)
            told = f"{text}, which names {self._names(answer)}"
            heard = self._answered(heard, worker, number, at, answer)
            yield told, heard, _kind(scene, heard)
        if scene.left[0]:
            less = _put(scene.left, 0, scene.left[0] - 1)
            for what, base in (("it", scene), ("the answer", then)):
                lost = self._status(base._replace(left=less), worker, number, at, OVER)
                yield f"{text}: {what} is lost", self._tidied(lost, worker), FAULT

    def _answered(self, scene: Scene, worker: int, number: int, at: int, answer: int) -> Scene:
        named = scene.attends[worker][number][0]
        for message in _bits(named):
            place, keeper, by, _ = scene.messages[message]
            if place == HELD and keeper == worker:
                by = by | 1 << at if answer >> message & 1 else by & ~(1 << at)
                scene = self._named(scene, message, by)
        return self._tidied(scene, worker)

    def _named(self, scene: Scene, message: int, by: int) -> Scene:
        """Start a message that a quorum of nodes names."""
        worker = scene.messages[message][1]
        needed = 1 if "a quorum starts" in self._broken else self._quorum
        if by.bit_count() < needed:
            return self._moved(scene, message, (HELD, worker, by, 0))
        return self._started(scene, message, worker, 0)

    def _started(self, scene: Scene, message: int, worker: int, is_new: int) -> Scene:
        """Let a message try, or wait for the process of its worker."""
        if any(place in _IN_PROCESS and at == worker for place, at, _, _ in scene.messages):
            return self._moved(scene, message, (STARTED, worker, 0, is_new))
        elders = 0
        for other in _bits(self._shares[message] & ((1 << message) - 1)):
            if self.setting.fair and scene.messages[other][0] == HELD:
                elders |= 1 << other
        votes = tuple(UNHEARD if node in self.setting.down else PENDING for node in self._nodes)
        return self._moved(scene, message, (TRYING, worker, votes, elders))

    def _tidied(self, scene: Scene, worker: int) -> Scene:
        left = tuple(
            attend for attend in scene.attends[worker] if any(at != OVER for at in attend[1])
        )
        return scene._replace(attends=_put(scene.attends, worker, left))

    def _wakes(self, scene: Scene, at: int) -> Iterator[Move]:
        for message in _bits(scene.wakes[at]):
            wakes = _put(scene.wakes, at, scene.wakes[at] & ~(1 << message))
            then = scene._replace(wakes=wakes)
            place, _, by, _ = scene.messages[message]
            kind = PLAIN
            if place == HELD:
                self.reached.add("woken")
                then = self._named(then, message, by | 1 << at)
                kind = _kind(scene, then)
            yield f"n{at} wakes m{message}", then, kind
            if scene.left[0]:
                lost = scene._replace(wakes=wakes, left=_put(scene.left, 0, scene.left[0] - 1))
                yield f"a wake-up of n{at} for m{message} is lost", lost, FAULT

    # Time and faults.

    def _changes(self, scene: Scene, at: int) -> Iterator[Move]:
        owners, present, in_quarantine = scene.nodes[at]
        losses, kills, restarts, blocks = scene.left

        def with_node(node: Node, left: tuple[int, int, int, int] = scene.left) -> Scene:
            return scene._replace(nodes=_put(scene.nodes, at, node), left=left)

        if present[-1]:
            node = (owners, (*present[:-1], 0), in_quarantine)
            yield f"who is gone lapses on n{at}", with_node(node), TIME
        if ORPHAN in owners:
            freed = tuple(FREE if owner == ORPHAN else owner for owner in owners)
            yield f"a lease ends on n{at}", with_node((freed, present, in_quarantine)), TIME
        for key in self.setting.rates:
            for slot in self._slots[key]:
                owner = owners[slot]
                if owner not in (FREE, ORPHAN) and scene.messages[owner][0] in (DONE, BROKER):
                    # One slot of a rate is free on all nodes at the same moment.
                    nodes = tuple(
                        (_put(node[0], slot, FREE), node[1], node[2]) for node in scene.nodes
                    )
                    if at == 0:
                        yield f"slot {slot} is free again", scene._replace(nodes=nodes), TIME
        if in_quarantine and all(owner in (FREE, ORPHAN) for owner in owners):
            yield f"n{at} votes again", with_node(((FREE,) * len(owners), present, False)), TIME
        if at in self.setting.down:
            return
        if restarts:
            left = (losses, kills, restarts - 1, blocks)
            # Quarantine keeps away what the leases that it has forgotten keep away.
            forgot = (0,) * len(present)
            node = (owners, forgot, True)
            if "quarantine" in self._broken:
                node = ((FREE,) * len(owners), forgot, False)
            then = with_node(node, left)._replace(wakes=_put(scene.wakes, at, 0))
            yield f"n{at} restarts empty", then, FAULT
        for worker in range(self.setting.workers) if blocks else ():
            if present[worker]:
                node = (owners, _put(present, worker, 0), in_quarantine)
                left = (losses, kills, restarts, blocks - 1)
                yield f"w{worker} is blocked and lapses on n{at}", with_node(node, left), FAULT

    def _kills(self, scene: Scene) -> Iterator[Move]:
        losses, kills, restarts, blocks = scene.left
        if not kills:
            return
        for message, (place, _, _, _) in enumerate(scene.messages):
            if place == HELD:
                left = (losses, kills - 1, restarts, blocks)
                then = self._moved(scene, message, _DONE)._replace(left=left)
                yield f"m{message} is revoked", then, FAULT
        for worker in range(self.setting.workers):
            hit = [
                message
                for message, (place, at, _, _) in enumerate(scene.messages)
                if place not in (BROKER, DONE) and at == worker
            ]
            if not hit:
                continue
            nodes = tuple(
                (
                    tuple(ORPHAN if owner in hit else owner for owner in node[0]),
                    (*_put(node[1], worker, 0)[:-1], node[1][-1] | node[1][worker]),
                    node[2],
                )
                for node in scene.nodes
            )
            for text, come_back in (("come back", True), ("do not come back", False)):
                messages = list(scene.messages)
                for message in hit:
                    held = messages[message][0] == HELD
                    messages[message] = (_BACK if held else _NEW) if come_back else _DONE
                then = scene._replace(
                    messages=tuple(messages),
                    nodes=nodes,
                    attends=_put(scene.attends, worker, ()),
                    left=(losses, kills - 1, restarts, blocks),
                )
                yield f"w{worker} is killed; its messages {text}", then, FAULT

    def _is_settled(self, scene: Scene) -> bool:
        """Return whether nothing changes who could run, so that the period begins now."""
        return not any(scene.wakes) and all(
            place in (HELD, RUNNING, DONE) or (place == STARTED and is_new)
            for place, _, _, is_new in scene.messages
        )

    def _calm(self, scene: Scene) -> Scene:
        nodes = scene.nodes
        if "who is gone lapses" not in self._broken:
            nodes = tuple((node[0], (*node[1][:-1], 0), node[2]) for node in nodes)
        return scene._replace(nodes=nodes, due=(True,) * self.setting.workers, left=(0, 0, 0, 0))

    # What is checked.

    def _asleep(self, scene: Scene) -> list[int]:
        asleep = []
        for message, (place, _, _, _) in enumerate(scene.messages):
            if place not in (HELD, STARTED):
                continue
            if place == STARTED and (scene.messages[message][3] or self._all_are_busy(scene)):
                continue
            free = sum(
                not node[2] and at not in self.setting.down and self.could_run(node, message)
                for at, node in enumerate(scene.nodes)
            )
            if free >= self._quorum:
                asleep.append(message)
        return asleep

    def _check_exclusion(self, scene: Scene, text: str) -> None:
        for key, slots in enumerate(self._slots):
            running = sum(
                place == RUNNING and key in self.setting.wants[message]
                for message, (place, _, _, _) in enumerate(scene.messages)
            )
            if running > len(slots):
                raise ViolationError((text, ()), "more hold a key than may")
