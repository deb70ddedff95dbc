"""
UDP in batches: rings of messages, trains of datagrams, one system call for many.
"""
