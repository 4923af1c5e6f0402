"""
Schedules: what is known of their entries.
"""
