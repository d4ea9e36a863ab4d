"""The scoreboard: what schedule policies do to the time to first token, against first come first served."""
