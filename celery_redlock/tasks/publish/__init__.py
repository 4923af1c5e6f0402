"""
Publishing a task whose mode locks at publish.
"""
