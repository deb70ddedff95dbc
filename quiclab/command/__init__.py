"""What a typed command becomes: words, plans, runs in a row, and what the terminal shows."""
