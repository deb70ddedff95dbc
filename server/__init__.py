"""
The traced process: a QUIC perf server whose socket I/O is visible from outside.
"""
