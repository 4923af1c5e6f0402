"""
Faults in what names groups, judges them and reads what they refuse: another server than the
broker's, or a fault that nobody hears of.
"""

from __future__ import annotations

from evidence.planted.writing import fault, tested

TRANSLATED = tested("test_a_broker_behind_sentinels_is_translated")
REFUSED = tested("test_any_other_broker_is_refused_with_the_setting_to_write")
EXPLAINED = tested("test_a_node_without_a_named_master_has_a_reason")
FOUND = tested("test_one_cause_gives_one_finding_that_names_its_group")
SENTINEL_URL = "tasks/config/broker_node.py::_sentinel_url"
SENTINEL_QUERY = "tasks/config/broker_node.py::_sentinel_query"
EXPLAIN = "transport/redis/sentinel.py::SentinelGroup._explain"
VOTES = "transport/redis/masters.py::GroupConnector._admit"

NAMING = (
    fault(
        "a broker's database is not that of its group",
        TRANSLATED,
        (SENTINEL_URL, "/{quote(group, safe='')}/{database}", "/{quote(group, safe='')}/0"),
    ),
    fault(
        "brokers of several users are one group",
        REFUSED,
        (SENTINEL_URL, "or (one.username, one.password) not in (login, (None, None))", ""),
    ),
    fault(
        "brokers of several databases are one group",
        REFUSED,
        (SENTINEL_URL, "or (one.path is not None and _database(one.path) != database)", ""),
    ),
    fault(
        "the Sentinels of a broker get no password",
        TRANSLATED,
        (SENTINEL_QUERY, "for key, value in login.items()", "for key, value in ()"),
    ),
    fault(
        "the Sentinels of a broker are reached with TLS as its master is",
        TRANSLATED,
        (SENTINEL_QUERY, "if (own is None) != (tls is None):", "if False:"),
    ),
    fault(
        "an option that no URL expresses is left away",
        REFUSED,
        (SENTINEL_QUERY, "for key in options if not", "for key in () if not"),
    ),
    fault(
        "the files for TLS to Sentinels go to a master without TLS",
        tested("test_a_group_has_urls_of_its_sentinels_and_of_its_master"),
        ("transport/addresses.py::_sentinel_group", 'if tls and scheme == "redis":', "if False:"),
    ),
    fault(
        "a Sentinel of Valkey is no Sentinel",
        tested("test_a_sentinel_that_is_named_as_a_server_names_the_url_to_write"),
        (
            "transport/redis/connect_error.py::check_mode",
            'info.get("redis_mode", info.get("server_mode", ""))',
            'info.get("redis_mode", "")',
        ),
    ),
    fault(
        "a wrong password at the Sentinels may pass",
        EXPLAINED,
        (EXPLAIN, "sum(one.lasting for one in silent) > len(reported) - needed", "False"),
    ),
    fault(
        "one Sentinel that refuses makes a failure lasting",
        EXPLAINED,
        (EXPLAIN, "> len(reported) - needed", "> 0"),
    ),
    fault(
        "a new process takes a promoted master for one that has served",
        tested("test_a_new_process_does_not_count_what_a_promoted_master_has"),
        (VOTES, "connection.read_response() == 1", "connection.read_response() >= 0"),
    ),
    fault(
        "a new process takes every master for a promoted one",
        tested("test_a_new_process_knows_the_holder_at_once"),
        (VOTES, "connection.read_response() == 1", "connection.read_response() > 1"),
    ),
    fault(
        "doctor takes a promoted master's quarantine for too long",
        FOUND,
        (
            "admin/node_report.py::NodeFacts.quarantine",
            "self.settings.max_ttl + self.takeover",
            "self.settings.max_ttl",
        ),
    ),
    fault(
        "doctor takes the age of a confirmation for no part of a takeover",
        FOUND,
        (
            "protocol/mastership.py::SHORTEST_TAKEOVER",
            "MAX_AGE + 2.0",
            "2.0",
        ),
    ),
    fault(
        "doctor does not count the Sentinel that it asks",
        tested("test_sentinels_that_the_url_does_not_name_are_missed"),
        ("admin/node_report.py::sentinel_facts", "one.others + 1", "one.others"),
    ),
    fault(
        "doctor takes Sentinels that miss their master for content",
        tested("test_sentinels_that_take_the_master_for_dead_do_not_agree"),
        (
            "admin/node_report.py::sentinel_facts",
            "all(one.vouches for one in reports)",
            "True",
        ),
    ),
)
