"""A typed priority-expression language for the two memory decisions of an LLM server."""

__version__ = "0.1.0"
