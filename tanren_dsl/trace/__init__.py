"""Request traces: one table in memory, its readers, its generator, and its view in engine blocks."""
