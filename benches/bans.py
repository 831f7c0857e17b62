#!/usr/bin/env python3
"""Guesses of a password: how many reach the application, who is locked out, and for how long?

    cargo build --release && python3 benches/bans.py [--knock 100] [--only NAME]

An application answers 401 to a wrong password and 200 to the right one, each after 50 ms. Before it stands Tollgate (two gateways
on one Redis), HAProxy with `http_err_rate` in a stick table, or nginx whose access log fail2ban reads. Each allows 5 wrong answers in
6 s. Bans of Tollgate last 6 s, 18 s and then 54 s, and those of fail2ban too; HAProxy refuses as long as the rate is above the limit. In
turn, at the login of `ann`, from the address 127.0.0.2:

- `of 64`: how many of 64 wrong guesses that begin at the same time reach the application.
- `bob`: how many of 10 logins of another user with the right password, from the same address, are served right after that.
- `right`: how many of 200 logins of one user with the right password are served, five at a time, from another address; and
  `then` how many of 5 guesses for the same user reach the application after that.
- `bans`: then a guess comes each 100 ms for `--knock` seconds. These are the times, in seconds, for which no guess reached
  the application, and `guesses` is how many reached it meanwhile.

fail2ban only reads: its action writes the address to a file of nginx, which is loaded again. With a firewall it would refuse
connections in place of requests, at the same moments.

Needs redis-server, nginx, haproxy and fail2ban.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time

import rig
from rig import free_port

GUESSER, OTHERS = "127.0.0.2", "127.0.0.3"
# A gap between two guesses that is longer is a ban.
BAN = 1.5

TOLLGATE = """listen: 127.0.0.1:{port}
upstream: http://127.0.0.1:{upstream}
store: {{redis: {{url: 'redis://127.0.0.1:{redis}'}}, gateways: 2}}
policies:
- name: login
  match: {{path: /login}}
  rules:
  - name: pair
    limit_keys: ["ip:address", header:x-user]
    algorithm: token_bucket
    algorithm_config: {{rate: 5/6s, burst: 5, count_on: [401]}}
    ban: {{for: [6s, 18s, 54s], forget_after: 1h}}
"""
HAPROXY = rig.HAPROXY_HEAD + """backend guesses
  stick-table type ip size 100k expire 1h store http_err_rate(6s)
frontend web
  bind 127.0.0.1:{port}
  http-request track-sc0 src table guesses
  http-request deny deny_status 429 if {{ sc0_http_err_rate ge 5 }}
  default_backend up
backend up
  server up 127.0.0.1:{upstream}
"""
NGINX = """daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{ access_log {folder}/access.log; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port}; include {folder}/banned.conf; location / {{ proxy_pass http://127.0.0.1:{upstream}; }} }} }}
"""
FAIL2BAN = {
    "fail2ban.conf": """[Definition]
loglevel = INFO
logtarget = {folder}/fail2ban.log
syslogsocket = auto
socket = {folder}/fail2ban.sock
pidfile = {folder}/fail2ban.pid
dbfile = {folder}/fail2ban.sqlite
dbpurgeage = 1d
dbmaxmatches = 10
allowipv6 = false
[Thread]
stacksize = 0
""",
    "jail.conf": """[login]
enabled = true
backend = {backend}
filter = login
logpath = {folder}/access.log
maxretry = 5
findtime = 6
bantime = 6
bantime.increment = true
bantime.multipliers = 1 3 9
ignoreself = false
usedns = no
action = nginx
""",
    "filter.d/login.conf": """[Definition]
failregex = ^<HOST> .* "POST /login [^"]*" 401
""",
    "action.d/nginx.conf": """[Definition]
actionban = echo "deny <ip>;" >> {folder}/banned.conf && kill -HUP $(cat {folder}/nginx.pid)
actionunban = sed -i "/deny <ip>;/d" {folder}/banned.conf && kill -HUP $(cat {folder}/nginx.pid)
""",
}


class Application:
    """Answers logins, and remembers when a guess came."""

    async def start(self):
        self.guesses, self.right = [], 0
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=1024)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        with contextlib.suppress(Exception):
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                is_right = b"x-password: right" in head
                if is_right:
                    self.right += 1
                else:
                    self.guesses.append(time.monotonic())
                await asyncio.sleep(0.05)
                status = b"200 OK" if is_right else b"401 Unauthorized"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
        writer.close()


async def login(port, address, user, password):
    """The status of a login, or 0 if the connection failed."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        request = f"POST /login HTTP/1.1\r\nHost: a.test\r\nX-User: {user}\r\nX-Password: {password}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        writer.close()
        return int(head.split()[1])
    return 0


async def at_once(ports, count, address, user, password):
    """How many of so many logins at the same time the application answered."""
    found = await asyncio.gather(*[login(ports[number % len(ports)], address, user, password) for number in range(count)])
    return sum(status in (200, 401) for status in found)


async def trial(name, application, ports, knock):
    """Makes the row of one subject."""
    application.guesses.clear()
    passed = await at_once(ports, 64, GUESSER, "ann", "wrong")
    # fail2ban sees the answers after a moment.
    await asyncio.sleep(1.2)
    bob = sum([await at_once(ports, 1, GUESSER, "bob", "right") for _ in range(10)])
    right = sum([await at_once(ports, 5, OTHERS, "carol", "right") for _ in range(40)])
    then = sum([await at_once(ports, 1, OTHERS, "carol", "wrong") for _ in range(5)])
    application.guesses.clear()
    begin = time.monotonic()
    running = set()
    number = 0
    while time.monotonic() - begin < knock:
        number += 1
        task = asyncio.ensure_future(login(ports[number % len(ports)], GUESSER, "ann", "wrong"))
        running.add(task)
        task.add_done_callback(running.discard)
        await asyncio.sleep(0.1)
    await asyncio.gather(*running)
    moments = [begin, *application.guesses, time.monotonic()]
    gaps = [later - earlier for earlier, later in zip(moments, moments[1:])]
    bans = [f"{gap:.0f}" for gap in gaps if gap > BAN]
    guesses = len(application.guesses)
    print(f"| {name} | {passed} of 64 | {bob} of 10 | {right} of 200 | {then} of 5 | {', '.join(bans) or 'none'} | {guesses} of {number} |", flush=True)
    if name.startswith("Tollgate") and not (passed <= 5 and bob == 10 and right == 200 and then == 5 and len(bans) >= 3):
        sys.exit("failed: Tollgate")


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--knock", type=int, default=100, help="for how many seconds guesses go on")
    parser.add_argument("--only", choices=["Tollgate", "HAProxy", "fail2ban"])
    arguments = parser.parse_args()
    application = Application()
    await application.start()
    print("\n| | of 64 | bob | right | then | bans | guesses |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as started:
        folder = rig.Folder(made)

        def run(*command):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            started.enter_context(rig.ending(process))

        if arguments.only in (None, "Tollgate"):
            redis, ports = free_port(), [free_port(), free_port()]
            run("redis-server", "--port", str(redis), "--save", "", "--dir", made)
            rig.wait_for(redis)
            for port in ports:
                text = TOLLGATE.format(port=port, upstream=application.port, redis=redis)
                run(str(rig.program()), "run", "-c", folder.write(f"{port}.yaml", text))
                rig.wait_for(port)
            await trial("Tollgate, two on one Redis", application, ports, arguments.knock)
        if arguments.only in (None, "HAProxy"):
            port = free_port()
            run("haproxy", "-db", "-f", folder.write("haproxy.cfg", HAPROXY.format(port=port, upstream=application.port)))
            rig.wait_for(port)
            await trial("HAProxy `http_err_rate`", application, [port], arguments.knock)
        if arguments.only in (None, "fail2ban"):
            port = free_port()
            folder.write("banned.conf", "")
            folder.write("access.log", "")
            run("nginx", "-c", folder.write("nginx.conf", NGINX.format(port=port, upstream=application.port, folder=made)))
            rig.wait_for(port)
            for name, text in FAIL2BAN.items():
                (folder.path / name).parent.mkdir(exist_ok=True)
                folder.write(name, text.format(folder=made, backend="polling"))
            run("fail2ban-server", "-f", "-c", made, "-s", f"{made}/fail2ban.sock", "-p", f"{made}/fail2ban.pid", "start")
            rig.soon("fail2ban", (folder.path / "fail2ban.sock").exists)
            await asyncio.sleep(1)
            await trial("fail2ban, nginx", application, [port], arguments.knock)


if __name__ == "__main__":
    asyncio.run(main())
