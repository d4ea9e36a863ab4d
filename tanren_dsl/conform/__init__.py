"""The real engine, driven in virtual time beside the simulator."""
