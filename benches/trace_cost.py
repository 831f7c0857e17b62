#!/usr/bin/env python3
"""What traces and sent metrics cost: CPU per request of a gateway that has no collector, sends metrics each second, traces one
request in a hundred, or all.

    python3 benches/trace_cost.py [--rounds 5] [--seconds 4]

Over 64 keep-alive connections, with one rule in memory that lets all requests pass. CPU is that of all threads of the
gateway, so of the one that sends as well. The collector is an nginx that takes everything.
"""

import re
import subprocess
import sys
import tempfile
import urllib.request

import rig
from rig import PROXY, ROOT, UPSTREAM, median

ADMIN = rig.free_port()
FILE = (f"listen: 127.0.0.1:{PROXY}\nadmin: 127.0.0.1:{ADMIN}\nupstream: http://127.0.0.1:{UPSTREAM}\n"
        "rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 1000000, burst: 1000000}}]\n")
COLLECTOR = f"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:{UPSTREAM}/v1/traces"
RATIO = ("OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01")
CALLER = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
METRICS = (f"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127.0.0.1:{UPSTREAM}/v1/metrics", "OTEL_METRIC_EXPORT_INTERVAL=1000")
WITHOUT = "no collector"
# What its environment says, what clients send.
SUBJECTS = {
    WITHOUT: ((), ()),
    "metrics sent each second": (METRICS, ()),
    "no request traced": ((COLLECTOR, "OTEL_TRACES_SAMPLER=parentbased_always_off"), ()),
    "no request traced, all have a caller": ((COLLECTOR, *RATIO), ("-H", CALLER)),
    "one in a hundred traced": ((COLLECTOR, *RATIO), ()),
    "all traced": ((COLLECTOR, "OTEL_TRACES_SAMPLER=always_on"), ()),
}


def spans(outcome):
    """How many spans were sent, or dropped; none where there are no traces."""
    with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/metrics") as metrics:
        lines = re.findall(rf"^tollgate_trace_spans_{outcome}_total\S* (\d+)$", metrics.read().decode(), re.M)
    return sum(map(int, lines))


def main():
    arguments = rig.arguments(__doc__)
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk"], check=True)
    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        binary = rig.cargo("--bin", "tollgate") / "tollgate"
        config = folder.write("gateway.yaml", FILE)
        counts = [lambda: spans("sent"), lambda: spans("dropped")]
        upstream = folder.upstream()
        try:
            rounds = []
            for number in range(arguments.rounds):
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
                rounds.append({})
                for name, (variables, options) in SUBJECTS.items():
                    command = ["env", *variables, binary, "run", "-c", config]
                    rounds[-1][name] = rig.measure_all({PROXY: command}, arguments.seconds, *options, counts=counts)
        finally:
            upstream.terminate()
            upstream.wait()

    print(f"{rig.headline(arguments)}\n")
    print("| | CPU µs per request | more | requests/s | spans sent per request | dropped |\n|---|---|---|---|---|---|")
    rows = {}
    for name in SUBJECTS:
        cost, rate, sent, dropped = (median(each[name][place] for each in rounds) for place in range(4))
        more = median(each[name][0] - each[WITHOUT][0] for each in rounds)
        rows[name] = {"cpu_microseconds": cost, "requests_per_second": rate}
        more = "" if name == WITHOUT else f"{more:+.1f}"
        print(f"| {name} | {cost:.1f} | {more} | {rate:.0f} | {sent:.2f} | {dropped:.2f} |")
    rig.keep(arguments, rows)


if __name__ == "__main__":
    main()
