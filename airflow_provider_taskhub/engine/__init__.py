"""The engine runs orchestrators and replays their histories. It has no clock, no I/O, no logging and no storage."""
