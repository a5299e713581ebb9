"""Protocols: requests become bytes, bytes become events. Sans-IO: no sockets, no clock, no asyncio."""
