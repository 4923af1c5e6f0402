"""What one holder leaves in a register the next one finds, and nobody older changes it."""

from __future__ import annotations

import pytest

from celery_redlock import QuorumUnavailable, Redlock, StaleFencingToken
from celery_redlock.core import Register, VersionedValue, client_of
from celery_redlock.protocol.commands import CHUNK_BYTES, read_register, write_register
from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.protocol.votes import Acknowledged, Failed, RegisterContents, Superseded, Vote
from tests.support.breaking import BREAKS, break_nodes, repair_nodes
from tests.support.cases import first_of
from tests.support.forking import end_of, in_child
from tests.support.nodes import MemoryNodes, Nodes, ServerNodes
from tests.support.together import in_threads
from tests.support.waiting import wait_until

NAME = "beat:app"
RECORD = "redlock-meta:register:redlock:" + NAME


def of(client: Redlock) -> Register:
    return Register(client_of(client), NAME)


def write_to(nodes: Nodes, where: list[int], token: int, **fields: tuple[int, str]) -> list[Vote]:
    """Let a write reach only some nodes."""
    return [nodes.run(node, write_register(RECORD, token, fields)) for node in where]


def on_every_node(nodes: Nodes, names: set[str]) -> bool:
    votes = [nodes.run(node, read_register(RECORD)) for node in range(len(nodes))]
    return all(isinstance(vote, RegisterContents) and set(vote.fields) == names for vote in votes)


def wait_for_promise(nodes: Nodes, token: int) -> None:
    """Wait until every node refuses older tokens; a claim is granted by a quorum of them."""

    def promised() -> bool:
        votes = [nodes.run(node, read_register(RECORD)) for node in range(len(nodes))]
        return all(isinstance(vote, RegisterContents) and vote.token == token for vote in votes)

    wait_until(promised, message=f"token {token} on every node")


def test_what_is_written_is_read_and_claimed(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    assert register.claim(7) == {}
    register.write(7, {"a": (3, "text"), "é 🎈": (MAX_TOKEN, "7 7 \r\n\0 é 🎈"), "b": (0, "")})
    there = {
        "a": VersionedValue(7, 3, "text"),
        "é 🎈": VersionedValue(7, MAX_TOKEN, "7 7 \r\n\0 é 🎈"),
        "b": VersionedValue(7, 0, ""),
    }
    assert register.read() == there
    assert register.read(["é 🎈", "nothing"]) == {"é 🎈": there["é 🎈"]}
    assert of(any_nodes.client()).claim(8) == there


def test_who_was_superseded_writes_and_claims_nothing(any_nodes: Nodes) -> None:
    before, after = of(any_nodes.connected()), of(any_nodes.connected())
    before.claim(MAX_TOKEN - 1)
    before.write(MAX_TOKEN - 1, {"a": (1, "before")})
    after.claim(MAX_TOKEN)
    wait_for_promise(any_nodes, MAX_TOKEN)
    with pytest.raises(StaleFencingToken) as refused:
        before.write(MAX_TOKEN - 1, {"a": (9, "late"), "b": (9, "late")})
    assert (refused.value.seen, refused.value.offered) == (MAX_TOKEN, MAX_TOKEN - 1)
    with pytest.raises(StaleFencingToken):
        before.claim(MAX_TOKEN - 1)
    with pytest.raises(StaleFencingToken):
        before.write(MAX_TOKEN - 1, {})
    assert after.read() == {"a": VersionedValue(MAX_TOKEN - 1, 1, "before")}


def test_a_refusal_names_the_register_the_tokens_and_the_nodes(nodes: Nodes) -> None:
    register = of(nodes.connected())
    register.claim(9)
    with pytest.raises(StaleFencingToken) as refused:
        register.write(8, {})
    said = str(refused.value)
    assert "'beat:app'" in said
    assert "token 9" in said
    assert "token 8" in said
    assert any(name in said for name in nodes.client().node_names)


def test_a_write_needs_no_claim_and_shuts_out_older_tokens(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    register.write(7, {"a": (1, "")})
    with pytest.raises(StaleFencingToken):
        register.write(6, {"a": (2, "")})


def test_a_read_shuts_nobody_out(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    register.claim(7)
    of(any_nodes.client()).read()
    register.write(7, {"a": (1, "")})


def test_a_field_keeps_its_newest_version(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    register.write(7, {"a": (10, "newer")})
    register.write(7, {"a": (9, "older")})
    assert register.read() == {"a": VersionedValue(7, 10, "newer")}
    register.write(7, {"a": (10, "again")})
    assert register.read() == {"a": VersionedValue(7, 10, "again")}
    register.write(8, {"a": (1, "a newer holder's")})
    assert register.read() == {"a": VersionedValue(8, 1, "a newer holder's")}


def test_a_deleted_field_is_gone(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    register.write(7, {"a": (1, ""), "b": (1, "")})
    register.write(7, {"a": None, "never there": None})
    wait_until(lambda: on_every_node(any_nodes, {"b"}))
    assert register.claim(8) == {"b": VersionedValue(7, 1, "")}


def test_what_a_quorum_has_is_found_though_others_have_missed_it(nodes: Nodes) -> None:
    writer = of(nodes.connected())
    nodes.kill(0, 1)
    writer.write(7, {"a": (1, "text")})
    nodes.restart(0, 1)
    nodes.kill(3, 4)
    assert of(nodes.client()).claim(8) == {"a": VersionedValue(7, 1, "text")}


def test_what_is_newer_on_some_nodes_wins(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    write_to(any_nodes, [0, 1, 2, 3, 4], 7, a=(1, "first"))
    write_to(any_nodes, [2, 3, 4], 7, a=(2, "second"))
    assert register.read() == {"a": VersionedValue(7, 2, "second")}
    write_to(any_nodes, [0, 1, 2], 8, a=(1, "a newer holder's"))
    assert register.claim(9) == {"a": VersionedValue(8, 1, "a newer holder's")}


def test_a_claim_that_reached_a_minority_shuts_nobody_out(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    for node in (0, 1):
        any_nodes.run(node, read_register(RECORD, MAX_TOKEN))
    assert register.claim(7) == {}
    register.write(7, {"a": (1, "")})


def test_a_claim_that_reached_a_quorum_shuts_out_though_nobody_knows_of_it(
    any_nodes: Nodes,
) -> None:
    register = of(any_nodes.connected())
    for node in (0, 1, 2):
        any_nodes.run(node, read_register(RECORD, 8))
    with pytest.raises(StaleFencingToken, match="3 of 5 nodes"):
        register.write(7, {"a": (1, "")})


def test_with_a_minority_stopped_it_goes_on_and_they_catch_up(nodes: Nodes) -> None:
    register = of(nodes.connected(node_timeout=2.0))
    nodes.pause(0, 1)
    register.claim(7)
    register.write(7, {"a": (1, "text")})
    nodes.resume(0, 1)
    wait_until(lambda: on_every_node(nodes, {"a"}))


def test_a_stopped_node_that_wakes_refuses_what_it_was_told_too_late(nodes: Nodes) -> None:
    before, after = of(nodes.connected(node_timeout=1.0)), of(nodes.connected())
    nodes.pause(0, 1, 2)
    with pytest.raises(QuorumUnavailable):
        before.write(7, {"a": (1, "late")})
    nodes.resume(0, 1, 2)
    after.claim(8)
    with pytest.raises(StaleFencingToken):
        after.write(7, {"a": (2, "later")})


def test_without_a_quorum_nothing_is_known_and_every_node_is_named(nodes: Nodes) -> None:
    client = nodes.connected()
    register = of(client)
    register.write(7, {"a": (1, "")})
    nodes.kill(0, 1, 2)
    for call in (lambda: register.claim(8), register.read, lambda: register.write(8, {})):
        with pytest.raises(QuorumUnavailable, match="needs 3 of 5 nodes") as failed:
            call()
        assert failed.value.key == NAME
        assert set(client.node_names[:3]) <= set(failed.value.nodes)


def test_nodes_that_lost_their_data_have_it_again_when_it_is_written_again(nodes: Nodes) -> None:
    register = of(nodes.connected())
    register.write(7, {"a": (1, "text")})
    wait_until(lambda: on_every_node(nodes, {"a"}))
    nodes.flush(0, 1)
    nodes.kill(3, 4)
    found = register.claim(8)
    assert found == {"a": VersionedValue(7, 1, "text")}
    register.write(8, {"a": (1, "text")})
    nodes.kill(2)
    nodes.restart(3, 4, keep_data=False)
    assert of(nodes.client()).claim(9) == {"a": VersionedValue(8, 1, "text")}


def test_registers_of_other_names_and_prefixes_are_others(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    register.write(7, {"a": (1, "")})
    assert Register(client_of(any_nodes.client()), "beat:other").claim(1) == {}
    assert of(any_nodes.client(key_prefix="other:")).claim(1) == {}
    assert of(any_nodes.client()).read() == {"a": VersionedValue(7, 1, "")}


def test_a_thousand_fields_are_written_and_claimed(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    register.write(7, {f"entry {n}": (n, "x" * (n % 200)) for n in range(1_001)})
    found = of(any_nodes.client()).claim(8)
    assert found == {f"entry {n}": VersionedValue(7, n, "x" * (n % 200)) for n in range(1_001)}
    assert register.read([f"entry {n}" for n in range(1_200)]) == found
    register.write(8, dict.fromkeys(found))
    assert register.read() == {}


def test_what_is_too_long_for_one_answer_is_told_in_several(any_nodes: Nodes) -> None:
    register = of(any_nodes.connected())
    texts = {f"entry {n}": str(n) * (CHUNK_BYTES // 30) for n in range(90)}
    texts |= {"longer than a piece": "é" * CHUNK_BYTES, "as long": "é" * CHUNK_BYTES}
    register.write(7, {name: (1, text) for name, text in texts.items()})
    wait_until(
        lambda: all(
            isinstance(vote, RegisterContents)
            and len(vote.fields) + len(vote.truncated) == len(texts)
            for vote in (
                any_nodes.run(node, read_register(RECORD)) for node in range(len(any_nodes))
            )
        )
    )
    found = of(any_nodes.client()).claim(8)
    assert {name: field.text for name, field in found.items()} == texts


def test_a_claim_in_several_pieces_is_refused_when_a_newer_one_comes_in_between(
    memory: MemoryNodes,
) -> None:
    client = memory.client()
    of(client).write(7, {f"entry {n}": (1, "x" * CHUNK_BYTES) for n in range(3)})
    exchange, said = client_of(client).transport.checkout().exchange, []

    def overtaken(batch: object, *args: object, **options: object) -> None:
        if len(said) == 1:
            for node in range(5):
                memory.run(node, read_register(RECORD, 9))
        said.append(batch)
        exchange(batch, *args, **options)  # type: ignore[arg-type]

    client_of(client).transport.exchange = overtaken  # type: ignore[attr-defined]
    with pytest.raises(StaleFencingToken):
        of(client).claim(8)
    assert len(said) == 2


def test_threads_share_a_register(nodes: Nodes) -> None:
    register = of(nodes.connected())

    def write(number: int) -> None:
        for version in range(20):
            register.write(7, {f"own {number}": (version, ""), "shared": (version, "")})
            register.read()

    in_threads(6, write)
    found = register.read()
    assert {name: field.version for name, field in found.items()} == dict.fromkeys(
        [*(f"own {number}" for number in range(6)), "shared"], 19
    )


def test_a_forked_child_speaks_through_connections_of_its_own(servers: ServerNodes) -> None:
    register = of(servers.connected())
    register.claim(7)
    child = in_child(lambda: register.write(7, {"child": (1, "")}))
    register.write(7, {"parent": (1, "")})
    assert end_of(child) == 0
    assert set(register.read()) == {"child", "parent"}


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (("SET", RECORD, "text"), "WRONGTYPE"),
        (("HSET", RECORD, "token", "many"), f"the token of {RECORD} is not a number"),
        (("HSET", RECORD, "f:a", "nonsense"), "'a' of its register"),
    ],
    ids=["another type", "token", "field"],
)
def test_a_damaged_register_is_a_failed_node_and_not_an_empty_one(
    servers: ServerNodes, break_it: tuple[str, ...], says: str
) -> None:
    register = of(servers.connected())
    register.write(7, {"a": (1, "text")})
    wait_until(lambda: on_every_node(servers, {"a"}))
    for node in (0, 1):
        servers.cluster.client(node).delete(RECORD)
        servers.cluster.client(node).execute_command(*break_it)
    assert register.claim(8) == {"a": VersionedValue(7, 1, "text")}
    servers.cluster.client(2).delete(RECORD)
    servers.cluster.client(2).execute_command(*break_it)
    with pytest.raises(QuorumUnavailable, match=says):
        register.claim(9)


def test_a_server_that_forgot_the_scripts_is_told_them_again(servers: ServerNodes) -> None:
    register = of(servers.connected())
    for node in range(5):
        servers.cluster.client(node).script_flush()
    register.write(7, {f"entry {n}": (n, "x" * 100) for n in range(600)})
    for node in range(5):
        servers.cluster.client(node).script_flush()
    assert len(register.claim(8)) == 600


def test_a_damaged_field_is_mended_by_writing_it(servers: ServerNodes) -> None:
    register = of(servers.connected())
    for node in range(5):
        servers.cluster.client(node).execute_command("HSET", RECORD, "f:a", "nonsense")
    register.write(7, {"a": (1, "text")})
    assert register.read() == {"a": VersionedValue(7, 1, "text")}


@pytest.mark.parametrize("how", first_of(BREAKS))
def test_a_minority_of_broken_nodes_is_borne(proxied: ServerNodes, how: str) -> None:
    client = proxied.connected(node_timeout=2.0)
    register = of(client)
    register.write(7, {"a": (1, "before")})
    break_nodes(proxied.cluster, how, 2)
    for version in range(2, 12):
        register.write(7, {"a": (version, "x" * 10_000)})
        assert register.read()["a"].version == version
    assert register.claim(8)["a"].version == 11
    with pytest.raises(StaleFencingToken):
        register.write(7, {})


@pytest.mark.parametrize("how", first_of(BREAKS))
def test_a_majority_of_broken_nodes_is_named(proxied: ServerNodes, how: str) -> None:
    register = of(proxied.connected(node_timeout=0.3))
    of(proxied.client()).write(7, {"a": (1, "before")})
    break_nodes(proxied.cluster, how, 3)
    for _ in range(3):
        with pytest.raises(QuorumUnavailable, match="needs 3 of 5 nodes"):
            register.write(7, {"a": (2, "x" * 100_000)})
    repair_nodes(proxied.cluster, 3)

    def written() -> bool:
        try:
            register.write(7, {"a": (3, "after")})
        except QuorumUnavailable:
            return False
        return True

    wait_until(written)
    assert of(proxied.client()).claim(8) == {"a": VersionedValue(7, 3, "after")}


def test_memory_nodes_that_talk_garbage_are_failed_nodes(memory: MemoryNodes) -> None:
    register = of(memory.client())
    for node in (0, 1):
        memory.nodes[node].garbage = True
    register.write(7, {"a": (1, "text")})
    assert register.claim(8) == {"a": VersionedValue(7, 1, "text")}
    memory.nodes[2].garbage = True
    with pytest.raises(QuorumUnavailable, match="answered garbage"):
        register.read()


def test_votes_of_every_sort_of_node_are_the_same(one_node: Nodes) -> None:
    done = write_to(one_node, [0], 7, a=(1, "text"))
    assert done == [Acknowledged()]
    assert write_to(one_node, [0], 6, a=(1, "text")) == [Superseded(7)]
    told = one_node.run(0, read_register(RECORD, 8, ["a"], max_bytes=3))
    assert told == RegisterContents(8, {"a": VersionedValue(7, 1, "text")})
    assert not isinstance(one_node.run(0, read_register(RECORD)), Failed)
