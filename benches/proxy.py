#!/usr/bin/env python3
"""CPU per request and requests per second: Tollgate, bare Pingora, nginx, HAProxy and Envoy, side by side in one run.

    python3 benches/proxy.py [--rounds 40] [--seconds 1]

Builds what it measures, starts an nginx that answers `ok` from memory, and drives each proxy in turn with wrk over 64
keep-alive connections. A limit is one for each client address, which no request exceeds: `limit_req` of nginx, a stick table of
HAProxy. CPU is the kernel's own accounting of the proxy's threads. Ratios are medians over rounds, in each of
which everything is measured once, one after the other; beside them is where the middle half of the rounds lies.
"""

import os
import subprocess
import tempfile

import rig
from rig import ROOT, UPSTREAM, free_port

RULE = "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000000, burst: 1000000}}]\n"


BARE = "bare Pingora, a socket for each core, mimalloc"
NONE = "Tollgate, no rules"
RULE_IN_MEMORY = "Tollgate, one rule in memory"
PAIRS = [
    (NONE, "nginx", 1.25),
    (NONE, BARE, 0.75),
    (NONE, "HAProxy", None),
    (NONE, "Envoy", None),
    (RULE_IN_MEMORY, "nginx, limit_req", 1.30),
    (RULE_IN_MEMORY, "HAProxy, stick table", 1.30),
    (RULE_IN_MEMORY, NONE, 1.15),
]
HAPROXY = """
global
  nbthread {threads}
  maxconn 4096
defaults
  mode http
  timeout client 30s
  timeout server 30s
  timeout connect 5s
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  {limit}
  default_backend upstream
backend upstream
  server upstream 127.0.0.1:{upstream}
"""
STICK_TABLE = """stick-table type ip size 100k expire 10s store http_req_rate(10s)
  http-request track-sc0 src
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 1000000000 }"""


def main():
    arguments = rig.arguments(__doc__, rounds=40, seconds=1)
    subprocess.run([ROOT / "scripts/need", "cmake", "haproxy", "nginx", "wrk"], check=True)
    bare = rig.cargo("--example", "bare", "--features", "bench-mimalloc") / "examples/bare"
    tollgate = rig.cargo("--bin", "tollgate") / "tollgate"
    cores = len(os.sched_getaffinity(0))

    with tempfile.TemporaryDirectory() as folder:
        folder = rig.Folder(folder)

        def gateway(name, rules=""):
            port = free_port()
            text = f"listen: 127.0.0.1:{port}\nupstream: http://127.0.0.1:{UPSTREAM}\n{rules}"
            return [tollgate, "run", "-c", folder.write(name, text)], port

        def haproxy(name, limit=""):
            port = free_port()
            text = HAPROXY.format(threads=cores, port=port, limit=limit, upstream=UPSTREAM)
            return ["/usr/sbin/haproxy", "-db", "-f", folder.write(name, text)], port

        def nginx(name, location="", zone=""):
            port = free_port()
            return folder.nginx(name, port, cores, location + rig.PASS, extra=zone), port

        ports = {name: free_port() for name in ("bare", "envoy")}
        zone = "limit_req_zone $binary_remote_addr zone=all:10m rate=1000000r/s;"
        subjects = {
            BARE: ([bare, f"127.0.0.1:{ports['bare']}", f"127.0.0.1:{UPSTREAM}", "sockets"], ports["bare"]),
            "nginx": nginx("plain"),
            "nginx, limit_req": nginx("limited", "limit_req zone=all burst=1000000 nodelay; ", zone),
            "HAProxy": haproxy("plain.cfg"),
            "HAProxy, stick table": haproxy("limited.cfg", STICK_TABLE),
            "Envoy": (folder.envoy(ports["envoy"], cores), ports["envoy"]),
            NONE: gateway("none.yaml"),
            RULE_IN_MEMORY: gateway("rule.yaml", RULE),
        }
        rounds = rig.rounds_beside_upstream(folder, subjects, arguments)

    print(f"{rig.headline(arguments)}\n")
    rig.keep(arguments, rig.table(rounds, upstream=True))
    print("\n| CPU per request | ratio | middle half | budget |\n|---|---|---|---|")
    for name, other, budget in PAIRS:
        print(f"| {name} / {other} | {rig.ratio(rounds, name, other)} | {f'{budget:.2f}' if budget else ''} |")


if __name__ == "__main__":
    main()
