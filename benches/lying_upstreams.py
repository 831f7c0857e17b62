#!/usr/bin/env python3
"""Upstreams that lie, stall or never end, behind the gateway, nginx and HAProxy: what a client gets, how soon, and for how much memory.

    cargo build --release && python3 benches/lying_upstreams.py [--clients 100] [--all]

First the invalid responses of tests/responses.txt and surplus bytes behind valid ones, each sent whole, byte by byte and in random
parts. `alien` is a response, or a part of one, that belongs to another request; after each lie another client must get its own
response. Prints a row where the gateway does not refuse what it should, or nginx or HAProxy pass it on; --all prints every row.

Then upstreams that stop, trickle or go on for ever in each phase of a request, with so many clients at once: how their requests end,
when the last has ended, and by how much the memory has grown for each. The gateway has `read`, `write` and `body_timeout` of 2 s and
`total` of 6 s, the others their likes of 2 s. Ends with 1 if a client of the gateway gets what is not its own, or waits
for longer than 10 s, or a request holds more than 400 KiB. Needs nginx and haproxy.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import random
import re
import socket
import sys
import tempfile
import time

import rig
import three_proxies

EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Smuggled: 1\r\n\r\nevil"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
RIGHT = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
]
SURPLUS = {
    "a response": EVIL,
    "an interim response and another": b"HTTP/1.1 100 Continue\r\n\r\n" + EVIL,
    "an empty line": b"\r\n",
    "a last chunk": b"0\r\n\r\n",
    "the beginning of a head": b"HTTP/1.1 200 OK\r\nX-Smuggled: 1\r\nX: ",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nevil",
}
GATEWAY = """listen: 127.0.0.1:{port}
upstreams:
  all:
    endpoints: ["http://127.0.0.1:{upstream}"]
    timeouts: {{connect: 2s, read: 2s, write: 2s, total: 6s}}
    retries: {{max: 0}}
routes: [{{name: all, upstream: all}}]
limits: {{body_timeout: 2s, connections_per_client: 5000}}
"""
HAPROXY = """
global
  maxconn 5000
defaults
  mode http
  timeout connect 2s
  timeout client 2s
  timeout server 2s
  retries 0
  http-reuse always
listen all
  bind 127.0.0.1:{port}
  server upstream 127.0.0.1:{upstream}
"""
NGINX = """proxy_pass http://up{upstream}; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_next_upstream off;
proxy_connect_timeout 2s; proxy_read_timeout 2s; proxy_send_timeout 2s; send_timeout 2s; client_body_timeout 2s; client_max_body_size 0;
proxy_request_buffering off;"""
NAMES = three_proxies.NAMES


def lies():
    """What a client should get, and the bytes of each lie."""
    for line in three_proxies.lines("responses.txt"):
        expected, text = line.split(" ", 1)
        yield expected, text, three_proxies.unescaped(text) + EVIL
    for right in RIGHT:
        status = re.findall(rb"HTTP/1.1 (\d+)", right)[-1].decode()
        for name, surplus in SURPLUS.items():
            yield status, f"{name} behind {right!r}"[:-1].replace("b'", "").replace("b\"", ""), right + surplus


def parts(sent, split):
    """The bytes, whole, one by one, or in parts of random sizes."""
    place, generator = 0, random.Random(len(sent))
    while place < len(sent):
        size = {"whole": len(sent), "bytes": 1, "random": generator.randint(1, 40)}[split]
        yield sent[place:place + size]
        place += size


class Upstream(three_proxies.Server):
    """Answers `/NUMBER/SPLIT/PORT` with that lie, `/phase/NAME` as that phase does, and all else with what is good."""

    def __init__(self, all_lies):
        self.lies = all_lies
        # Those that have been sent whole.
        self.told = collections.Counter()
        super().__init__()

    def serve(self, stream):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        read = b""
        try:
            while part := stream.recv(65536):
                read += part
                while b"\r\n\r\n" in read:
                    head, read = read.split(b"\r\n\r\n", 1)
                    if found := re.match(rb"\w+ /phase/([\w-]+) ", head):
                        return PHASES[found[1].decode()](stream)
                    if found := re.match(rb"\w+ /(\d+)/(\w+)/(\d+) ", head):
                        try:
                            for part in parts(self.lies[int(found[1])], found[2].decode()):
                                stream.sendall(part)
                        finally:
                            self.told[found[3]] += 1
                    else:
                        stream.sendall(GOOD)
        except OSError:
            pass
        finally:
            stream.close()


def stuck(first):
    """Sends that, and then nothing."""
    def serve(stream):
        stream.sendall(first)
        while stream.recv(65536):
            pass
    return serve


def endless(first, again, pause=0):
    """Sends that, and then the other again and again, as fast as it is taken or with a pause."""
    def serve(stream):
        stream.sendall(first)
        while True:
            stream.sendall(again)
            time.sleep(pause)
    return serve


def unread(first):
    """Sends that, and reads nothing any more."""
    def serve(stream):
        stream.sendall(first)
        time.sleep(20)
    return serve


OK, CHUNKED = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = OK + b"Content-Length: 1000000000000\r\n\r\n"
BLOCK = b"x" * 65536
PHASES = {
    "stuck-before-the-head": stuck(b""),
    "stuck-in-the-status-line": stuck(b"HTTP/1.1 2"),
    "stuck-in-a-field": stuck(OK + b"X: y"),
    "stuck-after-an-interim-response": stuck(b"HTTP/1.1 103 Hints\r\n\r\n"),
    "stuck-before-the-body": stuck(LONG),
    "stuck-in-the-body": stuck(LONG + b"x"),
    "stuck-in-a-size": stuck(CHUNKED + b"1"),
    "stuck-in-a-chunk": stuck(CHUNKED + b"10\r\nx"),
    "stuck-before-the-last-chunk": stuck(CHUNKED + b"1\r\nx\r\n"),
    "stuck-in-the-trailers": stuck(CHUNKED + b"0\r\nX: y\r\n"),
    "a-head-that-trickles": endless(OK + b"X: ", b"x", 0.5),
    "interim-responses-that-trickle": endless(b"", b"HTTP/1.1 103 Hints\r\n\r\n", 0.5),
    "a-body-that-trickles": endless(LONG, b"x", 0.5),
    "chunks-that-trickle": endless(CHUNKED, b"1\r\nx\r\n", 0.5),
    "trailers-that-trickle": endless(CHUNKED + b"0\r\nX: ", b"x", 0.5),
    "a-status-line-without-end": endless(b"HTTP/1.1 200 ", BLOCK),
    "a-field-without-end": endless(OK + b"X: ", BLOCK),
    "fields-without-end": endless(OK, b"X: y\r\n" * 10_000),
    "interim-responses-without-end": endless(b"", b"HTTP/1.1 103 Hints\r\nX: y\r\n\r\n" * 1000),
    "a-size-without-end": endless(CHUNKED, b"0" * 65536),
    "an-extension-without-end": endless(CHUNKED + b"1;", BLOCK),
    "trailers-without-end": endless(CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000),
    "a-trailer-without-end": endless(CHUNKED + b"0\r\nX: ", BLOCK),
    "a-body-without-end": endless(LONG, BLOCK),
    "a-body-until-it-closes": endless(OK + b"\r\n", BLOCK),
    "chunks-without-end": endless(CHUNKED, b"10000\r\n" + BLOCK + b"\r\n"),
    "chunks-of-a-byte-without-end": endless(CHUNKED, b"1\r\nx\r\n" * 10_000),
    "an-upload-that-is-not-read": unread(b""),
    "an-answer-and-an-upload-that-is-not-read": unread(GOOD),
    "half-an-answer-and-an-upload-that-is-not-read": unread(LONG),
}


def answer(read, closed):
    """What a client has got, in words."""
    if not read:
        return "closed" if closed else "waits"
    if b"Smuggled" in read or b"evil" in read:
        return "alien"
    final = re.sub(rb"^(HTTP/1\.1 1(?!01)\d\d .*?\r\n\r\n)*", b"", read, flags=re.S)
    if not (head := re.match(rb"HTTP/1\.[01] (\d{3}).*?\r\n\r\n", final, re.S)):
        return "half a head" if closed else "waits"
    status, rest = head[1].decode(), final[head.end():]
    if status in ("204", "304"):
        return status if not rest else "alien"
    if length := re.search(rb"(?i)\r\ncontent-length: (\d+)", head[0]):
        whole, surplus = len(rest) >= int(length[1]), rest[int(length[1]):]
    elif re.search(rb"(?i)\r\ntransfer-encoding: chunked", head[0]):
        end = re.search(rb"(?:^|\r\n)0\r\n(?:[^\r\n]+\r\n)*\r\n", rest)
        whole, surplus = end is not None, rest[end.end():] if end else b""
    else:
        whole, surplus = closed, b""
    return "alien" if surplus else status if whole else "cut" if closed else "waits"


def ask(port, sent, seconds, kept=65536):
    """What a client gets for that, and after how long. It reads at most so many bytes."""
    read, closed, begin = b"", False, time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        try:
            client.sendall(sent)
            while (left := begin + seconds - time.monotonic()) > 0 and len(read) < kept:
                client.settimeout(left)
                part = client.recv(65536)
                read += part
                if not part or answer(read, False) not in ("waits",):
                    closed = not part
                    break
        except TimeoutError:
            pass
        except OSError:
            closed = True
    return answer(read, closed), time.monotonic() - begin


def tried(port, upstream, number, split):
    """What the client of a lie gets, and `alien` if the next one, after the end of the lie, does not get its own."""
    before, lie = upstream.told[str(port).encode()], f"GET /{number}/{split}/{port} HTTP/1.1\r\nHost: a\r\n\r\n"
    got, _ = ask(port, lie.encode("ascii"), 15)
    rig.soon("the end of a lie", lambda: upstream.told[str(port).encode()] > before)
    # A moment for the last bytes: what comes after a connection is used again is an answer to anyone.
    time.sleep(0.005)
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n")
        read = b""
        while b"good" not in read and (part := client.recv(65536)):
            read += part
    return got if b"good" in read and b"Smuggled" not in read else "alien"


def memory(pids, kind):
    """In KiB."""
    total = 0
    for pid in pids:
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        total += int(re.search(rf"^{kind}:\s+(\d+)", status, re.M)[1])
    return total


def peak(process, during):
    """By how many KiB the most memory exceeds what was held before."""
    pids = rig.family(process.pid)
    for pid in pids:
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    before = memory(pids, "VmRSS")
    result = during()
    return max(0, memory(pids, "VmHWM") - before), result


def upload(port, phase, seconds):
    """A client that sends for as long as it can, and reads what comes."""
    begin, read, closed = time.monotonic(), b"", False
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.setblocking(False)
        rest = f"POST /phase/{phase} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n".encode("ascii")
        while time.monotonic() < begin + seconds and not closed:
            try:
                rest = rest[client.send(rest):] or BLOCK
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                closed = True
            try:
                part = client.recv(65536)
                read, closed = read + part, closed or not part
            except BlockingIOError:
                pass
            except OSError:
                closed = True
    return answer(read, closed), time.monotonic() - begin


def unread_answer(port, phase, seconds):
    """A client that reads nothing for so long, and then whether what comes has an end."""
    read = 0
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(f"GET /phase/{phase} HTTP/1.1\r\nHost: a\r\n\r\n".encode("ascii"))
        time.sleep(seconds)
        client.settimeout(1)
        try:
            # More than any buffer holds.
            while read < 16 << 20:
                if not (part := client.recv(65536)):
                    return "cut", seconds
                read += len(part)
        except TimeoutError:
            pass
        except OSError:
            return "cut", seconds
    return "waits", seconds


def phase(port, name, clients, seconds):
    """How the requests of so many clients end, and when the last one has."""
    def one(_):
        if "upload" in name:
            return upload(port, name, seconds)
        if "without-end" in name or "until-it-closes" in name:
            return unread_answer(port, name, seconds) if "body" in name or "chunks" in name else ask(
                port, f"GET /phase/{name} HTTP/1.1\r\nHost: a\r\n\r\n".encode("ascii"), seconds)
        return ask(port, f"GET /phase/{name} HTTP/1.1\r\nHost: a\r\n\r\n".encode("ascii"), seconds)

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        ends = list(pool.map(one, range(clients)))
    return collections.Counter(end for end, _ in ends), max(took for _, took in ends)


def start(name, folder, upstream):
    # rig's own upstream is another one.
    extra = f"upstream up{upstream} {{ server 127.0.0.1:{upstream}; keepalive 64; }}"
    return three_proxies.start(
        name, folder,
        gateway=lambda port: GATEWAY.format(port=port, upstream=upstream),
        nginx=lambda port: folder.nginx("nginx", port, 1, NGINX.format(upstream=upstream), extra=extra),
        haproxy=lambda port: HAPROXY.format(port=port, upstream=upstream))


def compare_lies(proxies, upstream, all_lies, shows_all):
    """Prints the table of the lies; how many the gateway has not refused."""
    def column(proxy):
        return [{split: tried(proxy[1], upstream, number, split) for split in ("whole", "bytes", "random")} for number in range(len(all_lies))]

    with concurrent.futures.ThreadPoolExecutor() as pool:
        columns = list(pool.map(column, proxies))
    wrong, same = 0, 0
    print(f"| what the upstream sends | {' | '.join(NAMES)} |\n|---|---|---|---|")
    for (expected, name, _), *row in zip(all_lies, *columns):
        refused = {"502", "cut", "closed"} if expected in ("502", "cut") else {expected}
        # In several parts, of which the first may have been passed on.
        wrong += not set(row[0].values()) <= refused
        if shows_all or any(not set(cell.values()) <= refused for cell in row):
            print(f"| `{name}` | {' | '.join(', '.join(sorted(set(cell.values()))) for cell in row)} |")
        else:
            same += 1
    print(f"\n{same} of {len(all_lies)} end as they should behind all three, however they are split: they are left out.")
    for name, column in zip(NAMES, columns):
        ends = collections.Counter(end for row in column for end in row.values())
        print(f"{name}: {', '.join(f'{count} {end}' for end, count in sorted(ends.items()))}")
    return wrong


def compare_phases(proxies, clients):
    """Prints the table of the phases; how many requests of the gateway are not bounded."""
    wrong = 0
    print(f"\n| {clients} clients, the upstream | {' | '.join(f'{name}: ends, last, KiB each' for name in NAMES)} |\n|---|---|---|---|")
    for name in PHASES:
        cells = []
        with concurrent.futures.ThreadPoolExecutor() as pool:
            measured = list(pool.map(lambda proxy: peak(proxy[0], lambda: phase(proxy[1], name, clients, 10)), proxies))
        for proxy, (grown, (ends, last)) in zip(NAMES, measured):
            each = grown / clients
            wrong += proxy == "gateway" and (each > 400 or "waits" in ends or "alien" in ends)
            cells.append(f"{', '.join(f'{count} {end}' for end, count in sorted(ends.items()))}; {last:.1f} s; {each:.0f}")
        print(f"| {name.replace('-', ' ')} | {' | '.join(cells)} |", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    all_lies = list(lies())
    with tempfile.TemporaryDirectory() as made:
        folder = rig.Folder(made)
        upstream = Upstream([sent for _, _, sent in all_lies])
        proxies = [start(name, folder, upstream.port) for name in NAMES]
        with rig.ending(*(process for process, _ in proxies)):
            wrong = compare_lies(proxies, upstream, all_lies, given.all) + compare_phases(proxies, given.clients)
            alive = proxies[0][0].poll() is None
    print(f"\ngateway: {wrong} findings{'' if alive else ', and it has ended'}")
    sys.exit(1 if wrong or not alive else 0)


if __name__ == "__main__":
    main()
