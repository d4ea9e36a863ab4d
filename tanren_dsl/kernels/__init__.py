"""Flat-array building blocks that Numba compiles, and the text of which emitted files carry."""
