"""Starts moto, an S3 store, with the bucket `bench`; run it with its own environment:

    ~/.cache/inferometer/real/moto/bin/python tools/real_servers/moto/serve.py

When it is ready, it prints one line of JSON: {"url": "http://127.0.0.1:40123", "pid": 1234}. It keeps objects in memory, accepts any
credentials, and ends when standard input is closed.
"""

import json
import logging
import os
import sys
import urllib.request

from moto.moto_server.threaded_moto_server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
url = "http://127.0.0.1:{1}".format(*server.get_host_and_port())
urllib.request.urlopen(urllib.request.Request(f"{url}/bench", method="PUT")).close()
print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)
sys.stdin.read()
