"""The emitted file inside a real engine's own tests."""
