"""
The transport for Redis and Valkey servers.
"""
