"""
What an app and a task were told: `redlock_*` settings, `lock_*` options, and the client they make.
"""
