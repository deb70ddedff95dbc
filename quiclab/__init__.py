"""The lab: plans a run, places it, watches it, explains it."""
