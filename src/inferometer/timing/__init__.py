"""Clocks, the kernel's receive timestamps and precise timers, used by both the client and the simulator."""
