"""
The transport for Redis and Valkey servers: channels over one connection to each node.
"""
