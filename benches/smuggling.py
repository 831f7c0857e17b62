#!/usr/bin/env python3
"""Hostile requests through the gateway to real servers: whether any smuggles a request past it, or takes another client's answer.

    cargo build --release && python3 benches/smuggling.py [--short] [SERVER...]

Each server that is installed (--list names them) stands behind a gateway of one thread, so that all its clients share connections
to the server. An application in it, or behind it if it proxies, answers with what it has read and records that. With each of some
thousand hostile requests of HTTP/1.1 and HTTP/2 come three of other clients: on the same connection behind it, on another one
meanwhile, and afterwards. A finding is

- a request at the server that the gateway has not logged, or again without a retry that the gateway has counted,
- one with another method or another length of its body than the gateway has logged, or with a field that was smuggled,
- a request of another client that is altered, is not answered, or gets an answer that is not its own,
- a hostile request that gets an answer that is not its own.

Prints a table, the findings, and which servers are not installed. Ends with 1 after a finding.
"""

import argparse
import collections
import concurrent.futures
import json
import re
import socket
import sys
import tempfile
import time
import urllib.request

import http2_frames
import recording_servers
import rig
import smuggling_requests

FILE = """admin: 127.0.0.1:0
listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]
threads: 1
upstreams: {{server: {{endpoints: ["http://127.0.0.1:{port}"], protocol: {protocol}, retries: {{max: 1, budget: 100%}}}}}}
routes: [{{name: all, upstream: server}}]
access_log: {{to: {log}, when: [allowed, refused, error]}}
limits: {{header_timeout: 5s, body_timeout: 5s}}
"""
# How long a connection is watched on which nothing comes, and how long a request of another client may take.
QUIET, PATIENCE = 0.4, 20
# Behind these two streams of hostile requests.
INNOCENT_STREAM = 101


def innocent(mark):
    return f"GET /innocent/{mark} HTTP/1.1\r\nHost: a\r\nX-Mark: {mark}\r\n\r\n".encode("ascii")


def response(read, method, closed):
    """The first response in these bytes as status and body, and what follows it; `None` if it is not whole."""
    if not (head := re.match(rb"HTTP/1\.[01] (\d{3}).*?\r\n\r\n", read, re.S)):
        return None
    status, read = int(head[1]), read[head.end() :]
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head[0])
    if status == 101:
        return (status, read), b""
    if method == "HEAD" or status < 200 or status in (204, 304):
        return (status, b""), read
    if re.search(rb"(?i)\r\ntransfer-encoding: chunked", head[0]):
        body = b""
        while size := re.match(rb"([0-9a-fA-F]+)\r\n", read):
            end = size.end() + int(size[1], 16)
            body, read = body + read[size.end() : end], read[end + 2 :]
            if not int(size[1], 16):
                return (status, body), read
        return None
    if not length:
        return ((status, read), b"") if closed else None
    end = int(length[1])
    return ((status, read[:end]), read[end:]) if len(read) >= end else None


def responses(read, methods, closed):
    """The final responses in these bytes, and what follows the last whole one."""
    found, methods = [], list(methods)
    while one := response(read, methods[0] if methods else "GET", closed):
        (status, body), read = one
        if status >= 200 or status == 101:
            found.append((status, body))
            methods = methods[1:]
    return found, read


def exchange(port, parts, then="stays", methods=("GET",), seconds=PATIENCE):
    """What a client of HTTP/1.1 gets for these parts: its responses, what comes besides, and whether the connection was closed. It
    stops when it has all of them, unless `seconds` is QUIET: then more may come."""
    read, closed = b"", False
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        try:
            for number, part in enumerate(parts):
                if number:
                    time.sleep(0.002)
                client.sendall(part)
            if then == "leaves":
                return [], b"", True
            if then == "half-closes":
                client.shutdown(socket.SHUT_WR)
            client.settimeout(seconds)
            while seconds == QUIET or len(responses(read, methods, closed)[0]) < len(methods):
                if not (part := client.recv(65536)):
                    closed = True
                    break
                read += part
        except TimeoutError:
            pass
        except OSError:
            closed = True
    return *responses(read, methods, closed), closed


def mark_of(body):
    """The mark in the request that an application says it has read; `None` if that is no answer of one."""
    try:
        read = json.loads(body)
        marks = [value for name, value in read["fields"] if name.lower() == "x-mark"]
        # The one that is smuggled has none.
        return marks[0] if marks else read["target"]
    except (ValueError, TypeError, KeyError):
        return None


def lines(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


class Trials:
    """All trials with one server."""

    def __init__(self, name, folder):
        self.server = recording_servers.Server(name, folder)
        self.log = self.server.folder.path / "access.jsonl"
        file = self.server.folder.write(
            "gateway.yaml", FILE.format(port=self.server.port, protocol=self.server.protocol, log=self.log)
        )
        with (self.server.folder.path / "log").open("w", encoding="utf-8") as log:
            self.gateway = rig.Gateway(file, log=log)
        self.port = self.gateway.ports["http"]
        self.findings, self.ends, self.retries = [], collections.Counter(), 0

    def find(self, trial, what, shown=""):
        self.findings.append(f"{trial}: {what}{f': {shown!r}'[:600] if shown else ''}")

    def innocent(self, trial, mark):
        """A request of another client, on a connection of its own."""
        got, _, _ = exchange(self.port, [innocent(mark)])
        if [(status, mark_of(body)) for status, body in got] != [(200, mark)]:
            self.find(trial, f"{mark} gets", got)

    def http1(self, number, name, parts, then):
        trial, mark = f"HTTP/1.1, {name}", f"a{number:04}"
        parts, whole = list(parts), b"".join(parts).replace(b"MARKS", mark.encode())
        for place, part in enumerate(parts):
            parts[place], whole = whole[: len(part)], whole[len(part) :]
        follows = [innocent(f"{mark}-same")] if then == "stays" else []
        method = "HEAD" if parts[0].startswith(b"HEAD ") else "GET"
        with concurrent.futures.ThreadPoolExecutor() as other:
            meanwhile = other.submit(self.innocent, trial, f"{mark}-other")
            # In one write where it is one part.
            sent = [*parts[:-1], parts[-1] + b"".join(follows)]
            got, rest, closed = exchange(self.port, sent, then, (method, "GET"), QUIET)
            meanwhile.result()
        self.innocent(trial, f"{mark}-after")
        # What the gateway has read as a request behind the hostile one is answered in its turn.
        expected, marks = [mark, "/smuggled", f"{mark}-same"], [mark_of(body) for status, body in got if status == 200 and body]
        if any(one not in expected for one in marks) or marks != sorted(set(marks), key=expected.index):
            self.find(trial, "gets", got)
        if rest and not closed:
            self.find(trial, "gets what is no response", rest)
        self.end(got[0][0] if got else 0, closed)

    def http2(self, number, name, sent):
        trial, mark = f"HTTP/2, {name}", f"b{number:04}"
        client = http2_frames.Connection(self.port)
        fields = [
            (b":method", b"GET"),
            (b":scheme", b"http"),
            (b":path", f"/innocent/{mark}-same".encode()),
            (b":authority", b"a"),
            (b"x-mark", f"{mark}-same".encode()),
        ]
        with concurrent.futures.ThreadPoolExecutor() as other:
            meanwhile = other.submit(self.innocent, trial, f"{mark}-other")
            client.send(sent.replace(b"MARKS", mark.encode()))
            client.send(http2_frames.headers(INNOCENT_STREAM, fields, end=True))
            client.until(lambda client: {1, INNOCENT_STREAM} <= client.ended.keys(), QUIET)
            if INNOCENT_STREAM not in client.ended:
                client.until(lambda client: INNOCENT_STREAM in client.ended, QUIET)
            meanwhile.result()
        client.close()
        self.innocent(trial, f"{mark}-after")
        for stream, expected in ((1, mark), (3, mark), (INNOCENT_STREAM, f"{mark}-same")):
            final = [status for status in client.statuses.get(stream, []) if status >= 200]
            body = client.bodies.get(stream, b"")
            if len(final) > 1 or (final == [200] and client.ended.get(stream) == "whole" and body and mark_of(body) != expected):
                self.find(trial, f"stream {stream} gets", (final, body))
        final = [status for status in client.statuses.get(1, []) if status >= 200]
        self.end(final[0] if final else 0, client.closed or 1 in client.ended)

    def end(self, status, closed):
        self.ends["reset or closed" if not status and closed else "waits" if not status else f"{status // 100}xx"] += 1

    def run(self):
        skipped = recording_servers.SKIPPED.get(self.server.name, "(?!)")
        try:
            for number, (name, parts, then) in enumerate(smuggling_requests.http1()):
                if not re.search(skipped, name):
                    self.http1(number, name, parts, then)
            for number, (name, sent) in enumerate(smuggling_requests.http2()):
                if not re.search(skipped, name):
                    self.http2(number, name, sent)
            with urllib.request.urlopen(f"http://127.0.0.1:{self.gateway.ports['admin']}/metrics") as metrics:
                counted = re.findall(r"^tollgate_upstream_retries_total(?:{.*})? (\d+)", metrics.read().decode(), re.M)
                self.retries = sum(map(int, counted))
        finally:
            with rig.ending(self.gateway.process):
                pass
            self.server.end()
        if "panicked" in (log := (self.server.folder.path / "log").read_text(encoding="utf-8")):
            self.find("all", "the gateway has panicked", log)
        return self.compare()

    def compare(self):
        """Compares what the server has read with what the gateway has logged. Returns how many requests the server has read."""
        logged = {}
        for line in lines(self.log):
            logged[line["request_id"]] = line
        records = lines(self.server.records)
        read = collections.Counter()
        for record in records:
            fields = [(name.lower(), value) for name, value in record["fields"]]
            marks = [value for name, value in fields if name == "x-mark"]
            trial, ids = f"mark {marks}", [value for name, value in fields if name == "x-request-id"]
            if len(ids) != 1 or ids[0] not in logged:
                self.find(trial, "the gateway has not sent", record)
                continue
            line = logged[ids[0]]
            read[ids[0]] += 1
            if read[ids[0]] > 1 and (record["length"] or sum(read.values()) - len(read) > self.retries):
                self.find(trial, "comes again", record)
            if record["method"] != line["method"] or (record["length"] != line["request_bytes"] and line["code"] < 400):
                self.find(trial, f"is altered, {line}", record)
            if record["target"] != "/smuggled" and any("smuggled" in name for name, _ in fields):
                self.find(trial, "has a smuggled field", record)
            framing = [name for name, _ in fields if name in ("content-length", "transfer-encoding")]
            if len(framing) > 1:
                self.find(trial, "has two lengths", record)
            if "/innocent/" in record["target"] or any("-" in mark for mark in marks):
                if (record["method"], record["length"], record["target"]) != ("GET", 0, f"/innocent/{marks[0]}") or len(marks) != 1:
                    self.find(trial, "is altered", record)
        if wrong := [line for line in logged.values() if line["request_id"] in read and "upstream_us" not in line]:
            self.find("all", "the gateway has not sent", wrong)
        return len(records)


def trials(name, folder):
    """A row of the table, and the findings."""
    try:
        one = Trials(name, folder)
    except recording_servers.Missing as missing:
        return f"not installed: {missing}", []
    begin = time.monotonic()
    records = one.run()
    ends = ", ".join(f"{count} {end}" for end, count in sorted(one.ends.items()))
    connections = {line.get("connection") for line in lines(one.server.records)}
    seconds = time.monotonic() - begin
    return f"| {name} | {ends} | {records} on {len(connections)} | {len(one.findings)} | {seconds:.0f} s |", one.findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="SERVER")
    parser.add_argument("--list", action="store_true", help="the servers")
    parser.add_argument("--short", action="store_true", help=", ".join(recording_servers.SHORT))
    arguments = parser.parse_args()
    if arguments.list:
        return print("\n".join(recording_servers.NAMES))
    names = arguments.servers or (recording_servers.SHORT if arguments.short else recording_servers.NAMES)
    with tempfile.TemporaryDirectory() as made, concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        folder = rig.Folder(made).path
        rows = list(pool.map(lambda name: trials(name, folder), names))
    print(
        f"{len(smuggling_requests.http1())} hostile requests of HTTP/1.1, {len(smuggling_requests.http2())} of HTTP/2, to each server:\n"
    )
    print("| server | answers to them | requests the server has read | findings | took |\n|---|---|---|---|---|")
    for row, _ in rows:
        if row.startswith("|"):
            print(row)
    for name, (row, found) in zip(names, rows):
        if not row.startswith("|"):
            print(f"{name}: {row}")
        for finding in found:
            print(f"{name}: {finding}")
    sys.exit(1 if any(found for _, found in rows) or not any(row.startswith("|") for row, _ in rows) else 0)


if __name__ == "__main__":
    main()
