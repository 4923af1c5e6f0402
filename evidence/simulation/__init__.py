"""
Deterministic simulation: the shipped client, from `Redlock` down to the bytes on its sockets, on
simulated machines, networks, nodes and clocks. One seed gives one history, byte for byte.
"""
