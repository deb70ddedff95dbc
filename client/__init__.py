"""
The load: opens connections, moves bytes by the perf protocol, times them.
"""
