"""The lab: plans a run, places it, watches it, explains it."""

VERSION = "0.1.0"
"""As in pyproject.toml; a test holds the two together."""
