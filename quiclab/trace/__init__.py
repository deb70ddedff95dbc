"""What is asked of bpftrace (scripts), and what it said (events, read from its JSON)."""
