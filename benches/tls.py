#!/usr/bin/env python3
"""CPU per request over TLS 1.3, with HTTP/1.1 and with HTTP/2: Tollgate, bare Pingora, nginx and Envoy, side by side in one run.

    python3 benches/tls.py [--rounds 20] [--seconds 1]

64 connections that are kept open, so that handshakes are no part of it, and with HTTP/2 8 connections with 8 streams each.
Otherwise as proxy.py: builds what it measures, drives each proxy in turn with wrk or h2load, and compares medians over rounds. Bare
Pingora has tokio-rustls before it, as its own listener with TLS has, one thread and one socket for each core, and our allocator.
"""

import os
import subprocess
import tempfile

import rig
from rig import ROOT, UPSTREAM, free_port, median

# Against each proxy, for HTTP/1.1 and for HTTP/2.
BUDGETS = {"bare Pingora, a socket for each core": (1.10, 1.10), "nginx": (1.00, 1.10), "Envoy": (1.00, 1.00)}

# What drives each protocol.
LOADS = {"HTTP/1.1": rig.wrk, "HTTP/2": rig.h2load}


def measure(protocol, arguments, tollgate, bare):
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        subprocess.run([ROOT / "scripts/certificate", "localhost"], cwd=path, check=True, stdout=subprocess.DEVNULL)
        pem, key = (folder.path / "certificates" / name for name in ("server.pem", "server.key"))
        ports = {name: free_port() for name in ("ours", "plain", "bare", "nginx", "envoy")}
        tls = f"tls: {{min_version: 1.3, certificates: [{{cert_file: {pem}, key_file: {key}}}]}}"
        listeners = f"listeners: [{{address: 127.0.0.1:{ports['ours']}, {tls}}}]"
        file = folder.write("gateway.yaml", f"{listeners}\nupstream: http://127.0.0.1:{UPSTREAM}\n")
        options = f"ssl_certificate {pem}; ssl_certificate_key {key}; ssl_protocols TLSv1.3; access_log off;"
        listen = f"listen 127.0.0.1:{ports['nginx']} ssl http2 reuseport;"
        extra = f"server {{ {listen} {options} location / {{ {rig.PASS} }} }}"
        nginx = folder.nginx("proxy", ports["plain"], cores, rig.PASS, extra=extra)
        addresses = f"127.0.0.1:{ports['bare']}", f"127.0.0.1:{UPSTREAM}"
        subjects = {
            "bare Pingora, a socket for each core": ([bare, *addresses, "ours", pem, key], ports["bare"]),
            "nginx": (nginx, ports["nginx"]),
            "Envoy": (folder.envoy(ports["envoy"], cores, (pem, key)), ports["envoy"]),
            "Tollgate": ([tollgate, "run", "-c", file], ports["ours"]),
        }
        return rig.rounds_beside_upstream(folder, subjects, arguments, scheme="https", load=LOADS[protocol])


def main():
    arguments = rig.arguments(__doc__, parts=tuple(LOADS), rounds=20, seconds=1)
    subprocess.run([ROOT / "scripts/need", "cmake", "nghttp", "nginx", "openssl", "wrk"], check=True)
    bare = rig.cargo("--example", "bare", "--features", "bench-mimalloc") / "examples" / "bare"
    tollgate = rig.cargo("--bin", "tollgate") / "tollgate"
    protocols = [arguments.part] if arguments.part else list(LOADS)
    measured = {protocol: measure(protocol, arguments, tollgate, bare) for protocol in protocols}

    print(f"{rig.headline(arguments)}; with HTTP/2, 8 connections with 8 streams each\n")
    print("| protocol | proxy | CPU µs per request | the upstream's | requests/s |\n|---|---|---|---|---|")
    rows = {}
    for protocol, rounds in measured.items():
        for name in rounds[0]:
            cost, beside, rate = (median(each[name][place] for each in rounds) for place in range(3))
            rows[f"{protocol}: {name}"] = {"cpu_microseconds": cost, "requests_per_second": rate}
            print(f"| {protocol} | {name} | {cost:.1f} | {beside:.1f} | {rate:.0f} |")
    rig.keep(arguments, rows)
    print("\n| CPU per request | ratio | middle half | budget |\n|---|---|---|---|")
    for protocol, rounds in measured.items():
        *others, ours = rounds[0]
        for other in others:
            budget = BUDGETS[other][list(LOADS).index(protocol)]
            print(f"| TLS, {protocol}: {ours} / {other} | {rig.ratio(rounds, ours, other)} | {budget:.2f} |")


if __name__ == "__main__":
    main()
