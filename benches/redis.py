#!/usr/bin/env python3
"""What a limit in Redis costs: CPU per request of the gateway and of Redis, beside the memory store, no rules, and nginx
that calls one EVALSHA per request from Lua.

    python3 benches/redis.py [--rounds 5] [--seconds 4]

Everything is measured once in each round, over 64 keep-alive connections; the tables show medians. `hot` is one bucket
that is asked by every request, `keys` are 10 000 of them at random, `overload` one bucket that is asked for a hundred
times what it has.
"""

import datetime
import os
import re
import subprocess
import sys
import tempfile

import rig
from rig import CONNECTIONS, PROXY, ROOT, UPSTREAM, median

REDIS = rig.free_port()
FILE = f"listen: 127.0.0.1:{PROXY}\nupstream: http://127.0.0.1:{UPSTREAM}\n"
STORE = f"store: {{redis: {{url: 'redis://127.0.0.1:{REDIS}'}}}}\non_store_failure: deny\n"


def rule(numbers):
    return f"rules: [{{name: all, limit_keys: [header:x-user], algorithm_config: {numbers}}}]\n"


WIDE = rule("{rps: 1000000, burst: 1000000}")
# A hundredth of what two cores let through.
NARROW = rule("{rps: 300, burst: 300}")

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


def main():
    arguments = rig.arguments(__doc__)
    subprocess.run([ROOT / "scripts/need", "cmake", "nginx", "wrk", "redis-server"], check=True)
    tollgate = rig.cargo("--bin", "tollgate") / "tollgate"
    cores = len(os.sched_getaffinity(0))
    modules = ["/usr/lib/nginx/modules/ndk_http_module.so", "/usr/lib/nginx/modules/ngx_http_lua_module.so"]
    lua = all(os.path.exists(module) for module in modules)
    if not lua:
        print("not measured: nginx with Lua; install libnginx-mod-http-lua and lua-nginx-redis", file=sys.stderr)

    with tempfile.TemporaryDirectory() as path:
        folder = rig.Folder(path)
        keys = ["-s", folder.write("keys.lua", KEYS)]
        hot = ["-H", "X-User: a"]

        def gateway(name, text):
            return [tollgate, "run", "-c", folder.write(f"{name}.yaml", FILE + text)]

        server = subprocess.Popen(["redis-server", "--port", str(REDIS), "--bind", "127.0.0.1", "--save", "",
                                   "--appendonly", "no", "--dir", path], stdout=subprocess.DEVNULL)
        upstream = folder.upstream()
        try:
            rig.wait_for(REDIS)
            none, memory, shared = gateway("none", ""), gateway("memory", WIDE), gateway("redis", STORE + WIDE)
            narrow = gateway("narrow", STORE + NARROW)
            subjects = {
                "Tollgate, no rules, hot": (none, hot),
                "Tollgate, memory, hot": (memory, hot),
                "Tollgate, Redis, hot": (shared, hot),
                "Tollgate, no rules, keys": (none, keys),
                "Tollgate, memory, keys": (memory, keys),
                "Tollgate, Redis, keys": (shared, keys),
                "Tollgate, Redis, overload": (narrow, hot),
            }
            if lua:
                sha = redis("SCRIPT", "LOAD", BUCKET)

                def by_hand(name, rate):
                    location = ACCESS.format(sha=sha, rate=rate, burst=rate) + rig.PASS
                    load = "".join(f"load_module {module};" for module in modules)
                    extra = 'lua_package_path "/usr/share/lua/5.1/?.lua;;";'
                    return folder.nginx(name, PROXY, cores, location, modules=load, extra=extra)

                wide, small = by_hand("lua", 1000000), by_hand("lua-narrow", 300)
                subjects["nginx and Lua, EVALSHA, hot"] = (wide, hot)
                subjects["nginx and Lua, EVALSHA, keys"] = (wide, keys)
                subjects["nginx and Lua, EVALSHA, overload"] = (small, hot)
            rounds = []
            for number in range(arguments.rounds):
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
                each = {}
                for name, (command, options) in subjects.items():
                    redis("FLUSHALL")
                    before = evalshas()
                    proxy, store, rate = rig.measure(command, arguments.seconds, *options, beside=[server.pid],
                                                     refusals="overload" in name)
                    # The second of warming up is in both.
                    each[name] = (proxy, store, rate, (evalshas() - before) / (rate * (arguments.seconds + 1)))
                rounds.append(each)
        finally:
            upstream.terminate()
            server.terminate()
            upstream.wait()
            server.wait()

    print(f"{datetime.date.today()}, {rig.machine()}, {CONNECTIONS} keep-alive connections, "
          f"{arguments.rounds} rounds of {arguments.seconds} s\n")
    print("| | CPU µs per request | of it Redis | requests/s | Redis calls per request |\n|---|---|---|---|---|")
    for name in subjects:
        proxy, store, rate, asked = (median(each[name][place] for each in rounds) for place in range(4))
        print(f"| {name} | {proxy + store:.1f} | {store:.1f} | {rate:.0f} | {asked:.3f} |")
    print("\n| CPU per request, Redis included | ratio | budget |\n|---|---|---|")
    pairs = [
        ("Tollgate, memory, hot", "Tollgate, no rules, hot", 1.10),
        ("Tollgate, Redis, hot", "Tollgate, no rules, hot", 1.25),
        ("Tollgate, Redis, keys", "Tollgate, no rules, keys", 1.50),
        ("Tollgate, Redis, hot", "nginx and Lua, EVALSHA, hot", 0.50),
        ("Tollgate, Redis, keys", "nginx and Lua, EVALSHA, keys", None),
        ("Tollgate, Redis, overload", "nginx and Lua, EVALSHA, overload", None),
    ]
    for name, other, budget in pairs:
        if other in subjects:
            ratio = median(sum(each[name][:2]) / sum(each[other][:2]) for each in rounds)
            print(f"| {name} / {other} | {ratio:.2f} | {f'{budget:.2f}' if budget else ''} |")


if __name__ == "__main__":
    main()
