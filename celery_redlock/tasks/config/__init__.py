"""
The options and settings of tasks and apps, checked, and the lock client made from them.
"""
