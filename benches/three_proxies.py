"""What raw.py and lying_upstreams.py share: the gateway, nginx and HAProxy before an upstream of bytes, and lists of bytes."""

import re
import socket
import subprocess
import threading

import rig

NAMES = ["gateway", "nginx", "HAProxy"]
ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}


def lines(file):
    """The lines of a list in tests/, without its comments."""
    for line in (rig.ROOT / "tests" / file).read_text(encoding="ascii").splitlines():
        if line and not line.startswith("#"):
            yield line


def unescaped(text):
    """The bytes that a line of tests/heads.txt or tests/responses.txt means."""
    parts = b""
    for times, repeated, byte, escape, plain in re.findall(r"\\\*(\d+)\((.*?)\)|\\x(..)|\\(.)|([^\\]+)", text):
        if times:
            parts += unescaped(repeated) * int(times)
        elif byte:
            parts += bytes([int(byte, 16)])
        else:
            parts += ESCAPES[escape] if escape else plain.encode()
    return parts


class Server:
    """Listens on a free port, and serves each connection on a thread of its own."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            threading.Thread(target=self.serve, args=(self.socket.accept()[0],), daemon=True).start()


def start(name, folder, gateway, nginx, haproxy):
    """Starts one of the three with its configuration, as a function of the port; its process and its port."""
    port = rig.free_port()
    command = {
        "gateway": lambda: [rig.program(), "run", "-c", folder.write("gateway.yaml", gateway(port))],
        "nginx": lambda: nginx(port),
        "HAProxy": lambda: ["/usr/sbin/haproxy", "-db", "-f", folder.write("haproxy.cfg", haproxy(port))],
    }[name]()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rig.wait_for(port)
    return process, port
