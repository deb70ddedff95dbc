"""What the server costs, compared within one run: see docs/architecture.md and `invoke bench`."""
