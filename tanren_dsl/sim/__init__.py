"""The simulators: replay mode, engine mode, bounds. They take a compile function and import no backend."""
