#!/usr/bin/env python3
"""What a limit in Redis costs: CPU per request of the gateway and of Redis, compared with the memory store, no rules, a
plain nginx, an nginx that calls one EVALSHA per request from Lua, and an Envoy that only proxies; and the same for several
gateways that share one Redis.

    python3 benches/redis.py [--rounds 5] [--seconds 4] [--part one|many]

Everything is measured once in each round, over 64 keep-alive connections; the tables show medians. `hot` is one bucket
that is asked by every request, `keys` are 10 000 of them at random, `overload` one bucket that is asked for a hundred
times what it has. With several gateways the connections are spread over them, and all ask one bucket.
"""

import os
import re
import subprocess
import sys
import tempfile

import rig
from rig import PROXY, ROOT, UPSTREAM, median

REDIS = rig.free_port()
GATEWAYS = (1, 2, 4)
FILE = "listen: 127.0.0.1:{port}\nupstream: http://127.0.0.1:%d\n" % UPSTREAM
STORE = f"store: {{redis: {{url: 'redis://127.0.0.1:{REDIS}'}}}}\non_store_failure: deny\n"


def rule(numbers):
    return f"rules: [{{name: all, limit_keys: [header:x-user], algorithm_config: {numbers}}}]\n"


WIDE = rule("{rps: 1000000, burst: 1000000}")
# A hundredth of what two cores let through.
NARROW = rule("{rps: 300, burst: 300}")

PAIRS = [
    ("Tollgate, memory, hot", "Tollgate, no rules, hot", 1.15),
    ("Tollgate, Redis, hot", "nginx, no limit", 1.60),
    ("Tollgate, Redis, keys", "nginx, no limit", 1.90),
    ("Tollgate, Redis, hot", "nginx and Lua, EVALSHA, hot", 0.40),
    ("Tollgate, Redis, hot", "Envoy, no limit", 0.55),
    ("Tollgate, Redis, keys", "nginx and Lua, EVALSHA, keys", None),
    ("Tollgate, Redis, overload", "nginx and Lua, EVALSHA, overload", None),
]

HOT = ["-H", "X-User: a"]
KEYS = """
request = function() return wrk.format("GET", "/", {["X-User"] = tostring(math.random(10000))}) end
"""

# What one would build by hand: a token bucket in one script, on the server's clock.
BUCKET = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local ts = tonumber(bucket[2]) or now
local tokens = math.min(burst, (tonumber(bucket[1]) or burst) + math.max(0, now - ts) * rate / 1000000)
local allowed = tokens >= 1
if allowed then tokens = tokens - 1 end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return allowed and 1 or 0
"""
ACCESS = """
access_by_lua_block {{
  local redis = require("nginx.redis"):new()
  redis:set_timeout(1000)
  local ok = redis:connect("127.0.0.1", %d)
  if not ok then return ngx.exit(503) end
  local granted, fault = redis:evalsha("{sha}", 1, "bucket:" .. (ngx.var.http_x_user or ""), {rate}, {burst})
  redis:set_keepalive(60000, 256)
  if granted ~= 1 then return ngx.exit(granted == 0 and 429 or 503) end
}}
""" % REDIS


def redis(*words):
    command = ["redis-cli", "-p", str(REDIS), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def evalshas():
    found = re.search(r"cmdstat_evalsha:calls=(\d+)", redis("INFO", "commandstats"))
    return int(found.group(1)) if found else 0


def one(folder, gateway, cores):
    """One gateway with each store, and what one would build by hand. By name: what is started, and what is asked."""
    keys = ["-s", folder.write("keys.lua", KEYS)]
    none, memory, shared = gateway("none", ""), gateway("memory", WIDE), gateway("redis", STORE + WIDE)
    subjects = {
        "Tollgate, no rules, hot": (none, HOT),
        "Tollgate, memory, hot": (memory, HOT),
        "Tollgate, Redis, hot": (shared, HOT),
        "Tollgate, no rules, keys": (none, keys),
        "Tollgate, memory, keys": (memory, keys),
        "Tollgate, Redis, keys": (shared, keys),
        "Tollgate, Redis, overload": (gateway("narrow", STORE + NARROW), HOT),
    }
    subjects["nginx, no limit"] = ({PROXY: folder.nginx("plain", PROXY, cores, rig.PASS)}, HOT)
    subjects["Envoy, no limit"] = ({PROXY: folder.envoy(PROXY, cores)}, HOT)
    modules = ["/usr/lib/nginx/modules/ndk_http_module.so", "/usr/lib/nginx/modules/ngx_http_lua_module.so"]
    if not all(os.path.exists(module) for module in modules):
        print("not measured: nginx with Lua; install libnginx-mod-http-lua and lua-nginx-redis", file=sys.stderr)
        return subjects
    sha = redis("SCRIPT", "LOAD", BUCKET)

    def by_hand(name, rate):
        location = ACCESS.format(sha=sha, rate=rate, burst=rate) + rig.PASS
        load = "".join(f"load_module {module};" for module in modules)
        extra = 'lua_package_path "/usr/share/lua/5.1/?.lua;;";'
        return {PROXY: folder.nginx(name, PROXY, cores, location, modules=load, extra=extra)}

    wide, small = by_hand("lua", 1000000), by_hand("lua-narrow", 300)
    subjects["nginx and Lua, EVALSHA, hot"] = (wide, HOT)
    subjects["nginx and Lua, EVALSHA, keys"] = (wide, keys)
    subjects["nginx and Lua, EVALSHA, overload"] = (small, HOT)
    return subjects


def many(gateway):
    """Several gateways on one Redis and one bucket."""
    ports = [PROXY, *(rig.free_port() for _ in range(max(GATEWAYS) - 1))]
    fleet = {port: gateway(f"shared-{port}", STORE + WIDE, port)[port] for port in ports}
    return {sharing(count): ({port: fleet[port] for port in ports[:count]}, HOT) for count in GATEWAYS}


def sharing(count):
    return f"{count} gateway{'s' if count > 1 else ''}, one hot key"


def measure(subjects, server, arguments):
    """By name and round: CPU of the proxies, CPU of Redis, requests per second, Redis calls per request."""
    rounds = []
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
        each = {}
        for name, (commands, options) in subjects.items():
            redis("FLUSHALL")
            each[name] = rig.measure_all(commands, arguments.seconds, *options, beside=[server.pid],
                                         counts=[evalshas], refusals="overload" in name)
        rounds.append(each)
    return rounds


def tell(names, rounds, first):
    """Prints the table of medians, and returns it."""
    print(f"\n|{first} | CPU µs per request | of it Redis | requests/s | Redis calls per request |")
    print("|---|---|---|---|---|")
    rows = {}
    for name in names:
        proxy, store, rate, asked = (median(each[name][place] for each in rounds) for place in range(4))
        rows[name] = {"cpu_microseconds": proxy + store, "redis_microseconds": store, "requests_per_second": rate,
                      "calls": asked}
        print(f"| {name} | {proxy + store:.1f} | {store:.1f} | {rate:.0f} | {asked:.3f} |")
    return rows


def compare(rounds, pairs):
    print("\n| CPU per request, Redis included | ratio | budget |\n|---|---|---|")
    for name, other, budget in pairs:
        if other in rounds[0]:
            ratio = median(sum(each[name][:2]) / sum(each[other][:2]) for each in rounds)
            print(f"| {name} / {other} | {ratio:.2f} | {f'{budget:.2f}' if budget else ''} |")


def main():
    arguments = rig.arguments(__doc__, parts=("one", "many"))
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk", "redis-server"], check=True)
    tollgate = rig.cargo("--bin", "tollgate") / "tollgate"
    cores = len(os.sched_getaffinity(0))

    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)

        def gateway(name, text, port=PROXY):
            return {port: [tollgate, "run", "-c", folder.write(f"{name}.yaml", FILE.format(port=port) + text)]}

        server = subprocess.Popen(["redis-server", "--port", str(REDIS), "--bind", "127.0.0.1", "--save", "",
                                   "--appendonly", "no", "--dir", path], stdout=subprocess.DEVNULL)
        upstream = folder.upstream()
        try:
            rig.wait_for(REDIS)
            alone = one(folder, gateway, cores) if arguments.part != "many" else {}
            together = many(gateway) if arguments.part != "one" else {}
            rounds = measure({**alone, **together}, server, arguments)
        finally:
            upstream.terminate()
            server.terminate()
            upstream.wait()
            server.wait()

    print(rig.headline(arguments))
    rows = {}
    if alone:
        rows.update(tell(alone, rounds, ""))
        compare(rounds, PAIRS)
    if together:
        rows.update(tell(together, rounds, f" sharing {cores} cores"))
        compare(rounds, [(sharing(count), sharing(1), None) for count in GATEWAYS[1:]])
    rig.keep(arguments, rows)


if __name__ == "__main__":
    main()
