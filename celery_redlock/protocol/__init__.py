"""
The Redlock protocol without I/O: commands, scripts, votes and rounds.

Nothing here opens a socket, reads a clock or draws a random number; time, randomness and replies
are passed in. So servers, in-memory nodes and model checkers all run the code that ships.
"""
