"""From a checked policy to something that runs: machine code, Python text, a file for an engine."""
