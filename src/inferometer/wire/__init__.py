"""In which bytes: requests to bytes and bytes to events. Sans-IO: no sockets, no clock, no asyncio."""
