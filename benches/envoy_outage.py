#!/usr/bin/env python3
"""Requests through an Envoy that asks for each, while Redis is killed and halted: Envoy's own failure mode never has to act.

    cargo build --release --locked && python3 benches/envoy_outage.py [--rate 10000] [--seconds 60] [--outages 6]

Plays the configurations of docs/edges.md, one way to ask after the other, but with the other failure mode: a request for which Envoy had to
decide by itself is refused. A limit that is never reached is in Redis, with `on_store_failure: local`. h2load sends `POST /login` over
64 keep-alive connections at a constant rate. In the outages Redis is killed with SIGKILL and started again empty, or halted with
SIGSTOP, in turns, for two seconds each. Ends with 1 if a request was refused, or if Redis answered during an outage.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import envoy
import rig

OUTAGE = 2
# In the configuration of each way, what makes Envoy refuse a request that it could not ask about.
MODES = {
    "By HTTP": ("failure_mode_allow: true", "failure_mode_allow: false"),
    "By gRPC": ("failure_mode_allow: true", "failure_mode_allow: false"),
    "The rate limit filter": ("failure_mode_deny: false", "failure_mode_deny: true"),
}


class Redis:
    def __init__(self, folder):
        self.port, self.folder = rig.free_port(), folder
        self.start()

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        rig.wait_for(self.port)

    def kill(self):
        self.process.kill()
        self.process.wait()
        time.sleep(OUTAGE)
        self.start()

    def halt(self):
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(OUTAGE)
        self.process.send_signal(signal.SIGCONT)


def metric(port, name, *labels):
    """The sum of the series of a metric that have all of these labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode("utf-8").splitlines()
    series = (line.rsplit(" ", 1) for line in lines if line.startswith(f"{name}{{"))
    return sum(float(value) for text, value in series if all(label in text for label in labels))


def answers(load):
    """How many requests were answered, how many of them not with 2xx, and how many were not answered."""
    output = load.communicate()[0]
    done, failed = (int(re.search(rf"^requests: .* (\d+) {what}", output, re.M).group(1)) for what in ("done", "failed"))
    good, *others = map(int, re.search(r"^status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", output, re.M).groups())
    # h2load counts a request with an error status as failed as well.
    return done, sum(others), max(0, failed - sum(others)), good


def play(folder, arguments, number, heading):
    """One way to ask: a line of the table, and whether the proof holds."""
    redis, port = Redis(folder.path), rig.free_port()
    gateway, proxy = (envoy.ports(text, port) for text in envoy.configurations(heading))
    before, after = MODES[heading]
    if before not in proxy:
        sys.exit(f"{heading}: no {before}")
    proxy = folder.write(f"envoy-{number}.yaml", proxy.replace(before, after))
    store = f"store: {{redis: {{url: 'redis://127.0.0.1:{redis.port}'}}}}\n"
    gateway = gateway.replace("rate: 5/minute", "rps: 1000000, burst: 1000000") + store
    process = rig.Gateway(folder.write(f"gateway-{number}.yaml", gateway))
    program, _, _, *options = folder.envoy(rig.PROXY, 2)
    log = open(folder.path / "envoy.log", "w", encoding="utf-8")
    edge = subprocess.Popen([program, "-c", proxy, *options], stdout=log, stderr=log)
    kinds = [redis.kill, redis.halt]
    with log, rig.ending(process.process, edge):
        try:
            rig.wait_for(rig.PROXY)
            # A gateway that listens may still look for its store.
            rig.soon("a decision by Redis", lambda: asked(process.ports["admin"]))
            command = ["h2load", "--h1", "-t1", f"-c{rig.CONNECTIONS}", f"--rps={arguments.rate / rig.CONNECTIONS}",
                       f"-D{arguments.seconds}", "-d", folder.write("body", "name=ann"), f"http://127.0.0.1:{rig.PROXY}/login"]
            load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            with rig.ending(load):
                pause = arguments.seconds / (arguments.outages + 1) - OUTAGE
                ineffective = 0
                for outage in range(arguments.outages):
                    time.sleep(pause)
                    count = lambda: metric(process.ports["admin"], "rate_limiter_fallback_decisions_total")
                    earlier = count()
                    kinds[outage % len(kinds)]()
                    ineffective += count() == earlier
                done, refused, lost, good = answers(load)
            fallback = metric(process.ports["admin"], "rate_limiter_fallback_decisions_total")
        finally:
            redis.process.send_signal(signal.SIGCONT)
            redis.process.kill()
            redis.process.wait()
    name = envoy.DOORS[heading]
    print(f"| {name} | {done / arguments.seconds:.0f} | {done} | {fallback:.0f} | {refused} | {lost} |", flush=True)
    return good > 0 and refused == lost == ineffective == 0


def asked(admin):
    """Whether a request through Envoy was decided by Redis."""
    request = urllib.request.Request(f"http://127.0.0.1:{rig.PROXY}/login", data=b"name=ann", method="POST")
    try:
        urllib.request.urlopen(request).close()
    except OSError:
        return False
    return metric(admin, "rate_limiter_decisions_total", "allowed") > metric(admin, "rate_limiter_fallback_decisions_total")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=10000, help="requests per second")
    parser.add_argument("--seconds", type=int, default=60, help="for each way to ask")
    parser.add_argument("--outages", type=int, default=6, help="in that time")
    arguments = parser.parse_args()
    subprocess.run([rig.ROOT / "scripts/need", "nginx", "h2load", "redis-server"], check=True)
    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        print(f"{rig.machine()}, {rig.CONNECTIONS} keep-alive connections, {arguments.rate} requests/s wanted, "
              f"{arguments.outages} outages of {OUTAGE} s in {arguments.seconds} s\n")
        print("| | requests/s | requests | decided without Redis | refused by Envoy | not answered |\n|---|---|---|---|---|---|")
        with rig.ending(folder.upstream()):
            held = [play(folder, arguments, number, heading) for number, heading in enumerate(MODES)]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
