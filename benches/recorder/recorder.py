#!/usr/bin/env python3
"""Answers each request with what was read of it, and writes that as a line of JSON into a file: recorder.py PORT FILE.

As an application of WSGI it does the same, with the file in RECORDS.
"""

import http.server
import json
import os
import sys


def record(path, **read):
    body = read.pop("body")
    read["body"], read["length"] = body[:4096].decode("latin-1"), len(body)
    line = json.dumps(read).encode("ascii") + b"\n"
    # Written at once, so that lines of several processes are not mixed.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, line)
    finally:
        os.close(file)
    return line


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    path_of_records = ""

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def log_message(self, *_):
        pass

    def exactly(self, length):
        body = self.rfile.read(length)
        if len(body) != length:
            raise ConnectionError("the body ends early")
        return body

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            parts = []
            while size := int(self.rfile.readline(65536).split(b";")[0], 16):
                parts.append(self.exactly(size))
                self.rfile.readline(65536)
            while self.rfile.readline(65536).strip():
                pass
            return b"".join(parts)
        return self.exactly(int(self.headers.get("Content-Length", 0)))

    def answer(self):
        target = self.raw_requestline.split()[1].decode("latin-1")
        fields, connection = list(self.headers.items()), self.headers.get("X-Connection", self.client_address[1])
        line = record(
            self.path_of_records, method=self.command, target=target, fields=fields, body=self.body(), connection=connection
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(line)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(line)

    def handle(self):
        try:
            super().handle()
        except (OSError, ValueError):
            pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def application(environ, start_response):
    if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", ""):
        import uwsgi  # pylint: disable=import-error,import-outside-toplevel

        parts = []
        while part := uwsgi.chunked_read():
            parts.append(part)
        body = b"".join(parts)
    else:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        if len(body) != length:
            raise ConnectionError("the body ends early")
    fields = [
        [name.removeprefix("HTTP_").replace("_", "-"), value]
        for name, value in environ.items()
        if name.startswith(("HTTP_", "CONTENT_"))
    ]
    line = record(
        os.environ["RECORDS"],
        method=environ["REQUEST_METHOD"],
        target=environ["REQUEST_URI"],
        fields=fields,
        body=body,
        connection=environ.get("REMOTE_PORT", ""),
    )
    start_response("200 OK", [("Content-Length", str(len(line)))])
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else line]


if __name__ == "__main__":
    Handler.path_of_records = sys.argv[2]
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
