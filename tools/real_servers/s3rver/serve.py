"""Starts s3rver, an S3 look-alike that does not know newer parts of the protocol, with the bucket `bench`:

    ~/.cache/inferometer/real/s3rver/bin/python tools/real_servers/s3rver/serve.py

When it is ready, it prints one line of JSON: {"url": "http://127.0.0.1:40123", "pid": 1234}. Its only key is S3RVER, with the secret
S3RVER. It ends when standard input is closed.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START_S = 60

program = Path(sys.prefix) / "s3rver/node_modules/s3rver/bin/s3rver.js"
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
with tempfile.TemporaryDirectory(prefix="s3rver-") as folder:
    command = ["node", str(program), "-a", "127.0.0.1", "-p", str(port), "-d", folder, "--configure-bucket", "bench"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr) as process:
        end = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise SystemExit("s3rver did not start") from None
                time.sleep(0.05)
        print(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": process.pid}), flush=True)
        sys.stdin.read()
        process.terminate()
