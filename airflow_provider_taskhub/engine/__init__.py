"""The engine: pure replay of orchestrators. No clock, no I/O, no logging, no storage."""
