#!/usr/bin/env python3
"""What a decision costs behind an Envoy: CPU per request of Envoy, the gateway and Redis, by the way in which Envoy asks.

    cargo build --release --locked && python3 benches/envoy.py [--rounds 12] [--seconds 1]

Plays the configurations of docs/edges.md, with limits that are never reached, in Redis and for one client, so that all requests charge
one bucket. `always OK` is the same gateway without a rule and a store: what remains is the call. wrk sends `POST /login` over 64
keep-alive connections.
"""

import re
import statistics
import subprocess
import tempfile

import rig
from rig import PROXY, ROOT, UPSTREAM, free_port, median

# By the heading in docs/edges.md, with the name in the table.
DOORS = {"By HTTP": "ext_authz by HTTP", "By gRPC": "ext_authz by gRPC", "The rate limit filter": "rate limit service"}
# Limitador and Redis, with its call, as it was measured once on another machine; the budget is half of it.
LIMITADOR, BUDGET = 83, 0.50


def configurations(heading):
    """The files of the gateway and of Envoy in a section of the page."""
    page = (ROOT / "docs/edges.md").read_text(encoding="utf-8")
    section = re.search(rf"^### {heading}\n(.*?)(?=^##)", page, re.M | re.S).group(1)
    return [re.search(rf"^```{kind}\n(.*?)^```", section, re.M | re.S).group(1) for kind in ("yaml", "yml")]


def ports(text, gateway):
    for before, after in {"9100": gateway, "9901": free_port(), "8080": PROXY, "9000": UPSTREAM}.items():
        text = re.sub(rf"\b{before}\b", str(after), text)
    return text


def main():
    arguments = rig.arguments(__doc__, rounds=12, seconds=1)
    subprocess.run([ROOT / "scripts/need", "nginx", "wrk", "redis-server"], check=True)
    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        redis = free_port()
        server = subprocess.Popen(["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", "", "--dir", path],
                                  stdout=subprocess.DEVNULL)
        upstream = folder.upstream()
        program, _, _, *options = folder.envoy(PROXY, 2)
        script = folder.write("login.lua", 'wrk.method = "POST"\nwrk.path = "/login"\n')

        def measure(envoy, file=None):
            """CPU of Envoy, of the gateway and of Redis, and requests per second."""
            command = [program, "-c", envoy, *options]
            if not file:
                cost, rate = rig.measure(command, arguments.seconds, "-s", script)
                return cost, 0, 0, rate
            gateway = rig.Gateway(file)
            with rig.ending(gateway.process):
                return rig.measure(command, arguments.seconds, "-s", script, beside=(gateway.process.pid, server.pid))

        subjects = {"Envoy alone": (folder.path / "envoy.yaml", None)}
        for number, (heading, name) in enumerate(DOORS.items()):
            gateway, envoy = configurations(heading)
            port = free_port()
            envoy = folder.write(f"envoy-{number}.yaml", ports(envoy, port))
            gateway = ports(gateway, port)
            store = f"store: {{redis: {{url: 'redis://127.0.0.1:{redis}'}}}}\n"
            limited = gateway.replace("rate: 5/minute", "rps: 1000000, burst: 1000000") + store
            unlimited = gateway[:re.search("^(rules|policies):", gateway, re.M).start()]
            subjects[f"{name}, always OK"] = envoy, folder.write(f"ok-{number}.yaml", unlimited)
            subjects[f"{name}, Redis"] = envoy, folder.write(f"redis-{number}.yaml", limited)
        try:
            rig.wait_for(redis)
            rounds = []
            for _ in range(arguments.rounds):
                rounds.append({name: measure(*files) for name, files in subjects.items()})
        finally:
            for process in (upstream, server):
                process.terminate()
                process.wait()

    print(f"{rig.headline(arguments)}\n")
    print("| | CPU µs per request: Envoy | Tollgate | Redis | all | requests/s |\n|---|---|---|---|---|---|")
    rows = {}
    for name in subjects:
        envoy, gateway, store, rate = (median(each[name][place] for each in rounds) for place in range(4))
        total = median(sum(each[name][:3]) for each in rounds)
        rows[name] = {"cpu_microseconds": total, "requests_per_second": rate}
        print(f"| {name} | {envoy:.1f} | {gateway:.1f} | {store:.1f} | {total:.1f} | {rate:.0f} |")
    rig.keep(arguments, rows)
    print("\n| CPU µs per request, the three together | difference | middle half |\n|---|---|---|")
    for name in DOORS.values():
        limited = f"{name}, Redis"
        for other in ("Envoy alone", f"{name}, always OK"):
            added = [sum(each[limited][:3]) - sum(each[other][:3]) for each in rounds]
            low, middle, high = statistics.quantiles(added, n=4) if len(added) > 1 else added * 3
            print(f"| {limited} − {other} | {middle:.1f} | {low:.1f} to {high:.1f} |")
    service = median(sum(each["rate limit service, Redis"][1:3]) for each in rounds)
    print(f"\n| | ratio | budget |\n|---|---|---|\n| Tollgate and Redis with its call, {service:.1f} µs / Limitador and Redis, "
          f"{LIMITADOR} µs on another machine | {service / LIMITADOR:.2f} | {BUDGET:.2f} |")


if __name__ == "__main__":
    main()
