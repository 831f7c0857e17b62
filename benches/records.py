#!/usr/bin/env python3
"""What records for billing cost: CPU of the gateway with and without `records`, at a steady rate and with many subjects.

    cargo build --release && python3 benches/records.py [--rounds 8] [--every 10] [--rate 5000] [--subjects 10000]

Two gateways with the same limit in memory, one of them with `records`, each get that many requests a second over 64 keep-alive
connections, both at the same time; every request has a random one of the subjects. A round is as long as an interval of the records, so it has
exactly one end of an interval, with a line for each subject. CPU is that of all threads, so of the one that writes as well. Needs nginx and
wrk.
"""

import argparse
import datetime
import statistics
import subprocess
import sys
import tempfile
import time

import rig
from rig import CONNECTIONS, PROXY, UPSTREAM, free_port, median, wait_for

RULES = """rules:
- name: month
  limit_keys: [header:x-user]
  algorithm: fixed_window
  algorithm_config: {limit: 1000000, window: month}
  meter: api-month
"""
# Of a core, with the defaults.
BUDGET = "2 %"
# A connection waits between two requests, in whole milliseconds, so that the mean is right.
LUA = """
local function text(number) return "GET / HTTP/1.1\\r\\nHost: a\\r\\nX-User: customer-" .. number .. "\\r\\n\\r\\n" end
local texts = {}
function init() for number = 1, %d do texts[number] = text(number) end end
function request() return texts[math.random(#texts)] end
local pause = %f
function delay()
  local whole = math.floor(pause)
  return math.random() < pause - whole and whole + 1 or whole
end
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--every", type=int, default=10, help="the interval, and the length of a round, in seconds")
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--subjects", type=int, default=10_000)
    return parser.parse_args()


def load(seconds, port, script):
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", script, f"http://127.0.0.1:{port}/"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answered(process):
    output = process.communicate()[0]
    if "Socket errors" in output or "Non-2xx" in output:
        sys.exit(f"not every request passed:\n{output}")
    return int(output.split(" requests in")[0].split()[-1])


def main():
    chosen = arguments()
    subprocess.run([rig.ROOT / "scripts/need", "nginx", "wrk"], check=True)
    ports = {"without records": PROXY, "with records": free_port()}
    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        records = f"records: {{to: records.jsonl, every: {chosen.every}s, meters: [api-month], subject: [header:x-user]}}\n"
        processes = []
        for name, port in ports.items():
            text = f"listen: 127.0.0.1:{port}\nupstream: http://127.0.0.1:{UPSTREAM}\nthreads: 1\n{RULES}"
            file = folder.write(f"{port}.yaml", text + (records if name == "with records" else ""))
            processes.append(subprocess.Popen([rig.program(), "run", "-c", file], stdout=subprocess.DEVNULL,
                                              stderr=subprocess.DEVNULL))
        with rig.ending(*processes, folder.upstream()):
            for port in ports.values():
                wait_for(port)
            # wrk adds the time of a request, and rounds up: the first loads find the pause.
            pause = 1000 * CONNECTIONS / chosen.rate
            for _ in range(3):
                script = folder.write("load.lua", LUA % (chosen.subjects, pause))
                loads = [load(1, port, script) for port in ports.values()]
                rate = median([answered(each) for each in loads])
                pause = max(0, pause + 1000 * CONNECTIONS / chosen.rate - 1000 * CONNECTIONS / rate)
            folder.write("load.lua", LUA % (chosen.subjects, pause))
            rounds = [measure(chosen, processes, ports, folder.path / "load.lua") for _ in range(chosen.rounds)]
        lines = sum(1 for _ in open(folder.path / "records.jsonl", "rb"))
    report(chosen, rounds, lines)


def measure(chosen, processes, ports, script):
    """CPU microseconds per request and requests per second, by name. An interval ends in the middle."""
    half = chosen.every / 2
    time.sleep((half - time.time()) % chosen.every)
    before = [rig.cpu_microseconds(process.pid) for process in processes]
    loads = [load(chosen.every, port, script) for port in ports.values()]
    requests = [answered(each) for each in loads]
    costs = [rig.cpu_microseconds(process.pid) - spent for process, spent in zip(processes, before)]
    return {name: (cost / count, count / chosen.every) for name, cost, count in zip(ports, costs, requests)}


def report(chosen, rounds, lines):
    print(f"{datetime.date.today()}, {rig.machine()}, {chosen.subjects} subjects, {chosen.rounds} rounds of {chosen.every} s, "
          f"records every {chosen.every} s\n")
    print("| | CPU µs per request | requests/s | CPU of a core |\n|---|---|---|---|")
    for name in rounds[0]:
        cost, rate = (median(each[name][place] for each in rounds) for place in range(2))
        print(f"| {name} | {cost:.2f} | {rate:.0f} | {cost * rate / 10_000:.2f} % |")
    more = [each["with records"][0] - each["without records"][0] for each in rounds]
    shares = [100 * value * chosen.rate / 1_000_000 for value in more]
    own = [100 * (1 - each["without records"][0] / each["with records"][0]) for each in rounds]
    print("\n| records | median | all rounds | budget |\n|---|---|---|---|")
    for name, values, unit, budget in (("µs per request", more, "", ""), (f"of a core at {chosen.rate} requests/s", shares, " %", BUDGET),
                                       ("of the gateway's CPU", own, " %", "")):
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"| {name} | {statistics.median(values):.2f}{unit} | {spread} | {budget} |")
    print(f"\n{lines} lines written")


if __name__ == "__main__":
    main()
