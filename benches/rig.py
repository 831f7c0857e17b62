"""What the benchmarks share: ports, processes, CPU by the kernel's accounting, wrk, and what it was answered."""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CONNECTIONS = 64


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


UPSTREAM, PROXY = free_port(), free_port()

NGINX = """
%s
daemon off; worker_processes {workers}; pid {folder}/{name}.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream up {{ server 127.0.0.1:%d; keepalive 256; keepalive_requests 1000000000; }}
  {extra}
  server {{ listen 127.0.0.1:{port} reuseport; location / {{ {location} }} }}
}}
""" % ("{modules}", UPSTREAM)
PASS = 'proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";'

# The first lines of a file of HAProxy: two threads, and no retries.
HAPROXY_HEAD = """global
  nbthread 2
defaults
  mode http
  retries 0
  timeout connect 5s
  timeout client 60s
  timeout server 60s
"""

# Only proxies: without an access log, without statistics of routes, a thread for each core.
ENVOY = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - {transport}
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          generate_request_id: false
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: upstream}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: upstream
    type: STATIC
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: %d}}}}}}
""" % UPSTREAM
# Beside the filters, in one line.
ENVOY_TLS = """transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            tls_params: {{tls_minimum_protocol_version: TLSv1_3}}
            alpn_protocols: [h2, http/1.1]
            tls_certificates: [{{certificate_chain: {{filename: {pem}}}, private_key: {{filename: {key}}}}}]"""


def arguments(description, parts=(), rounds=5, seconds=4):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=int, default=seconds)
    parser.add_argument("--json", type=pathlib.Path, help="where to write the medians, for picture.py")
    if parts:
        parser.add_argument("--part", choices=parts, help="measure this part alone")
    return parser.parse_args()


def cargo(*arguments):
    subprocess.run(["cargo", "build", "--release", "--locked", *arguments], cwd=ROOT, check=True)
    return TARGET / "release"


def program():
    """The gateway as it was built last."""
    built = TARGET / "release/tollgate"
    return built if built.exists() else sys.exit(f"missing: {built}; build it with: cargo build --release --locked")


@contextlib.contextmanager
def ending(*processes):
    """Ends them, whatever becomes of what goes on meanwhile."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait()


class Gateway:
    """A gateway that is ready: its process, and by kind the ports that it says it listens on."""

    def __init__(self, file, log=subprocess.DEVNULL):
        self.process = subprocess.Popen([program(), "run", "-c", file], stdout=subprocess.PIPE, stderr=log, text=True)
        self.ports = {}
        for line in self.process.stdout:
            if line == "ready\n":
                return
            _, kind, address = line.split()
            self.ports[kind] = int(address.rsplit(":", 1)[1])
        # What is wrong with the file is said there.
        subprocess.run([program(), "check", file], check=False)
        sys.exit(f"the gateway of {file} ended before it was ready")


class Folder:
    """A folder for configuration files, which nginx's workers can read as well."""

    def __init__(self, path):
        os.chmod(path, 0o755)
        self.path = pathlib.Path(path)

    def write(self, name, text):
        path = self.path / name
        path.write_text(text, encoding="ascii")
        return path

    def nginx(self, name, port, workers, location, modules="", extra=""):
        text = NGINX.format(name=name, port=port, workers=workers, location=location, folder=self.path,
                            modules=modules, extra=extra)
        return ["/usr/sbin/nginx", "-c", self.write(name, text)]

    def envoy(self, port, cores, certificate=None):
        """Envoy as it only proxies, over TLS with a certificate and its key."""
        found = subprocess.run([ROOT / "scripts/pypi-server", "envoy"], check=True, capture_output=True, text=True)
        transport = "name: plain"
        if certificate:
            pem, key = certificate
            transport = ENVOY_TLS.format(pem=pem, key=key)
        file = self.write("envoy.yaml", ENVOY.format(port=port, transport=transport))
        log = ("--log-level", "off", "--disable-hot-restart", "--concurrency", str(cores))
        return [found.stdout.strip(), "-c", file, *log]

    def upstream(self):
        """An nginx that answers `ok` from memory."""
        process = subprocess.Popen(self.nginx("upstream", UPSTREAM, 1, 'return 200 "ok\\n";'))
        wait_for(UPSTREAM)
        return process


def wait_for(port):
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), 0.1):
                return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"nothing listens on port {port}")


def soon(what, found, minutes=1):
    """What is found, within some minutes."""
    for _ in range(1200 * minutes):
        if result := found():
            return result
        time.sleep(0.05)
    sys.exit(f"{what}: not within {minutes} min")


def family(pid):
    """The process and its children: nginx works in children."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [pid, *(int(child) for child in children.read().split())]


def cpu_microseconds(pid):
    total = 0
    for member in family(pid):
        for task in os.listdir(f"/proc/{member}/task"):
            with open(f"/proc/{member}/task/{task}/schedstat", encoding="ascii") as schedstat:
                total += int(schedstat.read().split()[0])
    return total / 1000


def wrk(seconds, *options, refusals=False, ports=(PROXY,), scheme="http"):
    """How many requests were answered. The connections are spread evenly over the ports."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS // len(ports)}", f"-d{seconds}s", *options]
    loads = [subprocess.Popen([*command, f"{scheme}://127.0.0.1:{port}/"], stdout=subprocess.PIPE, text=True)
             for port in ports]
    requests = 0
    for output in [load.communicate()[0] for load in loads]:
        if "requests in" not in output or "Socket errors" in output or ("Non-2xx" in output and not refusals):
            sys.exit(f"not every request passed:\n{output}")
        requests += int(re.search(r"(\d+) requests in", output).group(1))
    return requests


def h2load(seconds, *, refusals=False, ports=(PROXY,), scheme="http"):
    """The same over HTTP/2: on 8 connections with 8 streams each."""
    [port] = ports
    command = ["h2load", "-t1", "-c8", "-m8", f"-D{seconds}", f"{scheme}://127.0.0.1:{port}/"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    done, failed = (int(re.search(rf"^requests: .* (\d+) {what}", output, re.M).group(1)) for what in ("done", "failed"))
    passed = int(re.search(r"^status codes: (\d+) 2xx", output, re.M).group(1))
    if failed or not done or (passed != done and not refusals):
        sys.exit(f"not every request passed:\n{output}")
    return done


# Every answer by its status, and the more exactly what is no answer of the upstream: who wrote it shows in its type.
ANSWERS = """
local threads = {}
function setup(thread) threads[#threads + 1] = thread end
function init() answers = {} end
function response(status, fields)
  local kind = tostring(status)
  if status ~= 200 then
    for name, value in pairs(fields) do
      if name:lower() == "content-type" then kind = kind .. " " .. value end
    end
  end
  answers[kind] = (answers[kind] or 0) + 1
end
function done(summary)
  for _, thread in ipairs(threads) do
    for kind, count in pairs(thread:get("answers")) do print("answered " .. count .. " " .. kind) end
  end
  for kind, count in pairs(summary.errors) do
    if kind ~= "status" then print("errors " .. count .. " " .. kind) end
  end
end
"""
WRITERS = {"application/problem+json": "the gateway's", "text/html": "HAProxy's"}


class Load:
    """Requests on kept connections until it is ended. Every answer and every broken connection is counted."""

    def __init__(self, folder, port):
        script = folder.write("answers.lua", ANSWERS)
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", "-d1h", "-s", script, f"http://127.0.0.1:{port}/"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def end(self):
        """How many requests were answered with 200, and how many failed, by what they got."""
        self.process.send_signal(signal.SIGINT)
        output = self.process.communicate()[0]
        passed, failures = 0, {}
        for what, count, kind in re.findall(r"^(answered|errors) (\d+) (.+)$", output, re.M):
            if (what, kind) == ("answered", "200"):
                passed = int(count)
            elif int(count):
                status, _, media = kind.partition(" ")
                writer = WRITERS.get(media, media or "nobody's")
                failures[f"{status}, {writer}" if what == "answered" else f"{kind} error of a connection"] = int(count)
        return passed, failures


def verdict(what, passed, failures):
    """Says what became of the requests; the exit code."""
    print(f"{what}: {passed + sum(failures.values())} requests, {sum(failures.values())} failed")
    for kind, count in sorted(failures.items()):
        print(f"  {count}: {kind}")
    # Without a request nothing has been shown.
    return 1 if failures or not passed else 0


def measure(command, seconds, *options, beside=(), refusals=False, ending=signal.SIGTERM):
    """CPU microseconds per request, of the command and of each process beside it; and requests per second."""
    return measure_all({PROXY: command}, seconds, *options, beside=beside, refusals=refusals, ending=ending)


def measure_all(commands, seconds, *options, beside=(), counts=(), refusals=False, ending=signal.SIGTERM):
    """The same of several commands together, each behind a port of its own; and by how much each count went up for each
    request."""
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                 for command in commands.values()]
    try:
        for port in commands:
            wait_for(port)
        # A gateway that listens may still look for its store: only what is measured must pass.
        wrk(1, *options, refusals=True, ports=tuple(commands))
        groups = [[process.pid for process in processes], *([pid] for pid in beside)]
        before = [sum(map(cpu_microseconds, group)) for group in groups]
        counted = [count() for count in counts]
        requests = wrk(seconds, *options, refusals=refusals, ports=tuple(commands))
        costs = [(sum(map(cpu_microseconds, group)) - spent) / requests for group, spent in zip(groups, before)]
        return [*costs, requests / seconds, *((count() - first) / requests for count, first in zip(counts, counted))]
    finally:
        for process in processes:
            process.send_signal(ending)
        for process in processes:
            process.wait()


def in_turns(commands, rounds, seconds, beside, refusing=(), scheme="http", load=wrk):
    """CPU microseconds per request of each command and of the process beside it, and requests per second: for every
    round, by the command's name. A command comes with its port, and options of wrk. Those that are `refusing` may refuse requests.

    All of them run all the time and are driven one after the other, each round beginning with the next. So what is
    compared was measured within seconds of each other: a machine may be a fifth slower some seconds later.
    """
    processes = {name: subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                 for name, (command, *_) in commands.items()}

    def drive(name, duration):
        pids = processes[name].pid, beside
        before = [cpu_microseconds(pid) for pid in pids]
        _, port, *options = commands[name]
        requests = load(duration, *options, refusals=name in refusing, ports=(port,), scheme=scheme)
        return [*((cpu_microseconds(pid) - spent) / requests for pid, spent in zip(pids, before)), requests / duration]

    try:
        for name, (_, port, *_) in commands.items():
            wait_for(port)
            drive(name, 1)
        names = list(commands)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            begin = number % len(names)
            yield {name: drive(name, seconds) for name in names[begin:] + names[:begin]}
    finally:
        for process in processes.values():
            # A bare Pingora that is asked to leave takes its time, and what nginx leaves behind would go on.
            for pid in reversed(family(process.pid)):
                os.kill(pid, signal.SIGKILL)
            process.wait()


def rounds_beside_upstream(folder, subjects, arguments, **options):
    """What `in_turns` measures of them, in front of an upstream that is started for it."""
    upstream = folder.upstream()
    try:
        return list(in_turns(subjects, arguments.rounds, arguments.seconds, upstream.pid, **options))
    finally:
        upstream.terminate()
        upstream.wait()


def median(values):
    return statistics.median(list(values))


def ratio(rounds, name, other):
    """CPU per request of one beside another: the median of the rounds, and where the middle half of them lies."""
    ratios = [each[name][0] / each[other][0] for each in rounds]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.3f} | {low:.3f} to {high:.3f}"


def table(rounds, upstream=False, more_heads=(), more=lambda name: ()):
    """Prints a row for each subject with the medians of its CPU per request, of its upstream's if that is asked for, and of its requests
    per second, and the cells that `more` has for its name. Returns what `keep` writes."""
    heads = ["CPU µs per request", *(["the upstream's"] if upstream else []), "requests/s", *more_heads]
    print("| | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|")
    rows = {}
    for name, measured in rounds[0].items():
        cost, *others, rate = (median(each[name][place] for each in rounds) for place in range(len(measured)))
        rows[name] = {"cpu_microseconds": cost, "requests_per_second": rate}
        cells = [f"{cost:.1f}", *([f"{others[0]:.1f}"] if upstream else []), f"{rate:.0f}", *more(name)]
        print(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as cpuinfo:
        model = re.search(r"model name\s*: (.*)", cpuinfo.read())
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model.group(1) if model else 'unknown'}"


def headline(arguments):
    return (f"{datetime.date.today()}, {machine()}, {CONNECTIONS} keep-alive connections, "
            f"{arguments.rounds} rounds of {arguments.seconds} s")


def keep(arguments, rows):
    """Writes what was measured, by name, where --json says."""
    if arguments.json:
        head = {"date": str(datetime.date.today()), "machine": machine()}
        arguments.json.write_text(json.dumps({**head, "rows": rows}, indent=2) + "\n", encoding="utf-8")
