"""
Faults of nodes that fail over: a former master and the new one both have the node's vote.
"""

from __future__ import annotations

from evidence.planted.writing import fault, simulated

PROMOTING = (
    fault(
        "votes count whoever their sender is by now",
        simulated("failover", "1-60"),
        (
            "transport/redis/channel.py::RedisChannel._handle_reply",
            "if connection.master is not None:",
            "if False:",
        ),
    ),
    fault(
        "a promoted master does not sit out the votes of the former one",
        simulated("failover", "1-60"),
        (
            "core/settings.py::client_settings",
            "milliseconds(longest + former)",
            "milliseconds(longest)",
        ),
        (
            "transport/redis/masters.py::MasterWatch.__init__",
            "milliseconds(max_ttl + takeover) if takeover",
            "milliseconds(max_ttl) if takeover",
        ),
    ),
    fault(
        "the Sentinels' word about a new master confirms the former one",
        simulated("failover", "1-60"),
        (
            "transport/redis/sentinel.py::SentinelGroup.learn",
            "(known.address, known.epoch) == (named.address, named.epoch)",
            "known.epoch <= named.epoch",
        ),
    ),
)
