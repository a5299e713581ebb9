"""Starts an emulator of Google Cloud Storage with the bucket `bench`; run it with its own environment:

    ~/.cache/inferometer/real/gcs_emulator/bin/python tools/real_servers/gcs_emulator/serve.py

When it is ready, it prints one line of JSON: {"url": "http://127.0.0.1:40123", "pid": 1234}. It keeps objects in memory, and ends when
standard input is closed.
"""

import json
import os
import socket
import sys

from gcp_storage_emulator.server import create_server

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
server = create_server("127.0.0.1", port, in_memory=True, default_bucket="bench")
server.start()
print(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": os.getpid()}), flush=True)
sys.stdin.read()
os._exit(0)
