#!/usr/bin/env python3
"""Two gateways behind HAProxy, one after the other restarted under load, and how many requests that fails.

    cargo build --release && python3 benches/rolling.py [--times 50] [--busy 4] [--hasty]

Each time one of the two gets SIGTERM, drains, leaves, and is started again; the other goes on once HAProxy sees both. With
--busy so many processes beside it do nothing but compute; with --hasty one health check that is late or wrong takes a gateway
away, and no request is sent again. Prints how many requests were sent and how many failed, by what they got instead of a 200
and who wrote that, and which gateways HAProxy has lost without a restart; the exit code is 1 where a request has failed. Needs
nginx, haproxy and wrk.
"""

import argparse
import contextlib
import csv
import multiprocessing
import re
import signal
import socket
import subprocess
import sys
import tempfile

import rig

FILE = """listen: 127.0.0.1:{port}
admin: 127.0.0.1:{admin}
upstream: http://127.0.0.1:{upstream}
drain: {{delay: 3s, timeout: 10s}}
rules: [{{name: all, limit_keys: [ip:address], algorithm_config: {{rps: 1000000, burst: 1000000}}}}]
"""
# docs/deploy.md has these lines as well.
CHECKS = "inter 500ms fall 3 rise 2"
DEFAULTS = """  timeout check 2s
  option redispatch
  retries 3
"""
HASTY = "inter 200ms fall 1 rise 1"
HAPROXY = """
global
  stats socket {folder}/socket
defaults
  mode http
  timeout connect 1s
  timeout client 30s
  timeout server 30s
{defaults}
listen gateways
  bind 127.0.0.1:{port}
  option httpchk GET /readyz
  default-server {checks}
{servers}
"""


class Proxy:
    """HAProxy before these gateways."""

    def __init__(self, folder, gateways, hasty):
        self.port, self.path = rig.free_port(), folder.path / "socket"
        servers = "\n".join(f"  server {number} 127.0.0.1:{gateway.ports['http']} check port {gateway.ports['admin']}"
                            for number, gateway in enumerate(gateways))
        checks, defaults = (HASTY, "  retries 0") if hasty else (CHECKS, DEFAULTS)
        text = HAPROXY.format(folder=folder.path, port=self.port, defaults=defaults, checks=checks, servers=servers)
        self.log = (folder.path / "haproxy.log").open("w+", encoding="ascii")
        command = ["/usr/sbin/haproxy", "-db", "-f", folder.write("haproxy.cfg", text)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        rig.wait_for(self.port)

    def servers(self):
        """What HAProxy says of each gateway."""
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(self.path))
            stream.sendall(b"show stat\n")
            rows = csv.DictReader(stream.makefile(encoding="ascii"))
            return [row for row in rows if row["svname"] not in ("FRONTEND", "BACKEND")]

    def sees_all(self):
        return all(server["status"] == "UP" for server in self.servers())

    def lost(self):
        """The gateways that it has found down, and why."""
        self.log.seek(0)
        return re.findall(r"Server gateways/(\d) is DOWN, reason: ([^,]*)(?:.*info: \"([^\"]*)\")?", self.log.read())


def compute():
    while True:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--hasty", action="store_true")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = rig.Folder(stack.enter_context(tempfile.TemporaryDirectory()))
        files = [folder.write(f"{number}.yaml", FILE.format(port=rig.free_port(), admin=rig.free_port(), upstream=rig.UPSTREAM))
                 for number in range(2)]
        stack.enter_context(rig.ending(folder.upstream()))

        def start(file):
            gateway = rig.Gateway(file)
            stack.enter_context(rig.ending(gateway.process))
            return gateway

        gateways = [start(file) for file in files]
        proxy = Proxy(folder, gateways, given.hasty)
        stack.enter_context(rig.ending(proxy.process))
        for _ in range(given.busy):
            multiprocessing.Process(target=compute, daemon=True).start()
        load = rig.Load(folder, proxy.port)
        stack.enter_context(rig.ending(load.process))
        for restart in range(given.times):
            rig.soon("HAProxy sees both gateways", proxy.sees_all)
            number = restart % 2
            gateways[number].process.send_signal(signal.SIGTERM)
            if code := gateways[number].process.wait():
                sys.exit(f"gateway {number} has left with {code}")
            gateways[number] = start(files[number])
        passed, failures = load.end()
        lost = proxy.lost()
    # Each restart is seen once: the answer 503 while it drains.
    late = [why for _, *why in lost]
    print(f"found down by HAProxy: {len(lost)} times")
    for why in sorted({tuple(why) for why in late}):
        print(f"  {late.count(list(why))}: {' '.join(why)}")
    return rig.verdict(f"{given.times} restarts", passed, failures)


if __name__ == "__main__":
    sys.exit(main())
