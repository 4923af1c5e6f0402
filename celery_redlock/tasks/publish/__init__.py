"""
Sending a unique task: its lock goes with the message.
"""
