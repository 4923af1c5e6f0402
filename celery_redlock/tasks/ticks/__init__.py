"""
Ticks: which entry of a schedule a message was sent for, and for which due time.
"""
