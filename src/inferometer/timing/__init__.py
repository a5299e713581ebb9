"""Clocks, the kernel's receive stamps and timers that do not round: what both the client and the simulator stand on."""
