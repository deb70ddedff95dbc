"""This machine: its facts, what it can do, and how it gets what it lacks."""
