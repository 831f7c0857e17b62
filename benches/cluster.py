#!/usr/bin/env python3
"""What a Redis Cluster costs against one Redis: CPU of the gateway and of all servers, for each request.

    cargo build --release && python3 benches/cluster.py [--rounds 12] [--seconds 4]

10 000 keys under one limit that refuses nothing, 64 and 256 connections. Each round measures each store once; what is printed
are medians over rounds. Needs nginx, wrk, redis-server and redis-cli.
"""

import statistics
import subprocess
import tempfile
import time

import rig
from rig import PROXY, UPSTREAM, free_port

KEYS = 10_000
# By connections: at most what one Redis costs, times this.
BUDGETS = {64: 1.40, 256: 1.30}
MASTERS = 3
LUA = """
local number = 0
request = function()
  number = (number + 7919) %% %d
  return "GET /?k=" .. number .. " HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n"
end
""" % KEYS


def server(folder, *more):
    port = free_port()
    own = folder.path / str(port)
    own.mkdir()
    process = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--dir", own, *more], stdout=subprocess.DEVNULL)
    rig.wait_for(port)
    return port, process


def cli(*words):
    return subprocess.run(["redis-cli", *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def cluster(folder):
    """Masters without replicas, which cost nothing here."""
    servers = [server(folder, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) for _ in range(MASTERS)]
    nodes = [f"127.0.0.1:{port}" for port, _ in servers]
    # `redis-cli --cluster create` expects the port of the bus at a fixed distance, which may be taken.
    for number, (port, _) in enumerate(servers):
        first, last = (16384 * part // MASTERS for part in (number, number + 1))
        cli("-p", port, "cluster", "addslotsrange", first, last - 1)
        cli("-p", port, "cluster", "set-config-epoch", number + 1)
    for port, _ in servers[1:]:
        bus = cli("-p", port, "cluster", "nodes").split("@")[1].split(",")[0].split(" ")[0]
        cli("-p", servers[0][0], "cluster", "meet", "127.0.0.1", port, bus)
    for port, _ in servers:
        rig.soon("the cluster serves", lambda port=port: "cluster_state:ok" in cli("-p", port, "cluster", "info")
                 and f"cluster_known_nodes:{MASTERS}" in cli("-p", port, "cluster", "info"))
    listed = ", ".join(f"'{node}'" for node in nodes)
    return f"{{redis: {{cluster: {{nodes: [{listed}]}}, timeout: 1s}}}}", [process for _, process in servers]


def measure(folder, store, servers, callers, seconds):
    """CPU in microseconds for each request: of the gateway, and of the servers."""
    file = folder.write("gateway.yaml", (
        f"listen: 127.0.0.1:{PROXY}\nthreads: 2\nupstream: http://127.0.0.1:{UPSTREAM}\nstore: {store}\non_store_failure: deny\n"
        "rules: [{name: key, limit_keys: [query:k], algorithm_config: {rate: 1000000/s}}]\n"))
    script = folder.write("keys.lua", LUA)
    gateway = rig.Gateway(file)
    with rig.ending(gateway.process):
        load = ["wrk", "-t1", f"-c{callers}", "-s", script, f"http://127.0.0.1:{PROXY}"]
        subprocess.run([*load, "-d1s"], check=True, stdout=subprocess.DEVNULL)
        before = [rig.cpu_microseconds(gateway.process.pid), sum(rig.cpu_microseconds(one.pid) for one in servers)]
        out = subprocess.run([*load, f"-d{seconds}s"], check=True, stdout=subprocess.PIPE, text=True).stdout
        after = [rig.cpu_microseconds(gateway.process.pid), sum(rig.cpu_microseconds(one.pid) for one in servers)]
        if "Non-2xx" in out:
            raise SystemExit(f"not every request passed:\n{out}")
        requests = int(out.split(" requests in ")[0].split()[-1])
        return [(later - earlier) / requests for earlier, later in zip(before, after)]


def main():
    arguments = rig.arguments(__doc__, rounds=12)
    with tempfile.TemporaryDirectory() as made:
        folder = rig.Folder(made)
        port, single = server(folder)
        stores = {"one Redis": (f"{{redis: {{url: 'redis://127.0.0.1:{port}', timeout: 1s}}}}", [single])}
        text, masters = cluster(folder)
        stores["cluster of three"] = (text, masters)
        with rig.ending(folder.upstream(), single, *masters):
            time.sleep(1)
            measured = {}
            for _ in range(arguments.rounds):
                for callers in BUDGETS:
                    for name, (store, servers) in stores.items():
                        cost = measure(folder, store, servers, callers, arguments.seconds)
                        measured.setdefault((callers, name), []).append(cost)
    print(rig.headline(arguments))
    print("\n| connections | store | gateway, CPU µs | Redis, CPU µs | both |\n|---|---|---|---|---|")
    for (callers, name), costs in measured.items():
        gateway, redis = (statistics.median(one) for one in zip(*costs))
        print(f"| {callers} | {name} | {gateway:.1f} | {redis:.1f} | {statistics.median(map(sum, costs)):.1f} |")
    print("\n| CPU per request, Redis included | ratio | budget |\n|---|---|---|")
    for callers, budget in BUDGETS.items():
        pairs = zip(*(measured[callers, name] for name in stores))
        ratio = statistics.median(sum(cluster) / sum(one) for one, cluster in pairs)
        print(f"| cluster of three / one Redis, {callers} connections | {ratio:.2f} | {budget:.2f} |")



if __name__ == "__main__":
    main()
