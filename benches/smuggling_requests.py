"""Hostile requests of HTTP/1.1 and HTTP/2, each with a name. `MARKS` in them becomes the mark of the trial."""

from http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    block,
    data,
    frame,
    headers,
)

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\nX-Smuggled: 1\r\n\r\n"
# A body that a reader of chunks takes for an end and a request.
ENDED = b"0\r\n\r\n" + SMUGGLED
# The same as a chunk, for a reader of lengths.
CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)

LENGTHS = [
    "+5",
    "-5",
    "5, 5",
    "5,50",
    "5 ",
    "\t5",
    "5\t",
    "0x5",
    "05",
    "5;",
    "5.0",
    '"5"',
    "5 5",
    "",
    " ",
    "5e0",
    "18446744073709551621",
    "٥",
    "5\x0b",
    "5\x00",
    "5\r",
    "5\x7f",
    "1_0",
    "5,",
]
ENCODINGS = [
    "chunked",
    "Chunked",
    "CHUNKED",
    " chunked ",
    "\tchunked",
    "chunked\t",
    "\x0bchunked",
    "chunked\x0b",
    "\x0cchunked",
    "chunked\x00",
    "\x00chunked",
    "chunked\r",
    "\rchunked",
    "chunked\x7f",
    "\xa0chunked",
    "chunked,",
    ",chunked",
    "chunked, chunked",
    "chunked, identity",
    "identity, chunked",
    "identity",
    "gzip",
    "gzip, chunked",
    "chunked, gzip",
    "xchunked",
    "chunkedx",
    "chunk",
    "chunked;q=1",
    '"chunked"',
    "'chunked'",
    "chunked chunked",
    "x chunked",
    "chun ked",
    "cow",
    "",
    "ch\xfcnked",
    "chunKed",
]
# Names that some server folds into the one that frames a body.
NAMES = [
    "Transfer-Encoding ",
    "Transfer-Encoding\t",
    " Transfer-Encoding",
    "\tTransfer-Encoding",
    "Transfer_Encoding",
    "Transfer.Encoding",
    "Transfer Encoding",
    "Transfer-Encoding\x00",
    "\x00Transfer-Encoding",
    "Transfer-Encoding\r",
    "X: y\rTransfer-Encoding",
    "X: y\nTransfer-Encoding",
    "X: y\r\n Transfer-Encoding",
    "X: y\r\n\tTransfer-Encoding",
    "Transfer-\xcbncoding",
    "\xefTransfer-Encoding",
    "(Transfer-Encoding)",
    "Transfer-Encoding:",
    "TRANSFER-ENCODING",
    "Transfer--Encoding",
]
CHUNKS = {
    "a size with a sign": "+{s:x}\r\n{b}\r\n0\r\n\r\n",
    "a negative size": "-{s:x}\r\n{b}\r\n0\r\n\r\n",
    "a size with 0x": "0x{s:x}\r\n{b}\r\n0\r\n\r\n",
    "a size with zeros": "0000{s:x}\r\n{b}\r\n0\r\n\r\n",
    "a size in capitals": "{s:X}\r\n{b}\r\n0\r\n\r\n",
    "a space before a size": " {s:x}\r\n{b}\r\n0\r\n\r\n",
    "a space after a size": "{s:x} \r\n{b}\r\n0\r\n\r\n",
    "a tab after a size": "{s:x}\t\r\n{b}\r\n0\r\n\r\n",
    "a vertical tab after a size": "{s:x}\x0b\r\n{b}\r\n0\r\n\r\n",
    "an underscore in a size": "0_{s:x}\r\n{b}\r\n0\r\n\r\n",
    "an extension": "{s:x};a=b\r\n{b}\r\n0\r\n\r\n",
    "a quoted extension": '{s:x};a="b"\r\n{b}\r\n0\r\n\r\n',
    "an extension with a line end in quotes": '{s:x};a="\r\n{b}\r\n0\r\n\r\n',
    "an extension with a bare line feed": "{s:x};a\n{b}\r\n0\r\n\r\n",
    "an extension with a bare carriage return": "{s:x};a\rb\r\n{b}\r\n0\r\n\r\n",
    "an extension with NUL": "{s:x};a=\0\r\n{b}\r\n0\r\n\r\n",
    "an extension without a semicolon": "{s:x} a=b\r\n{b}\r\n0\r\n\r\n",
    "an empty extension": "{s:x};\r\n{b}\r\n0\r\n\r\n",
    "a space before an extension": "{s:x} ;a=b\r\n{b}\r\n0\r\n\r\n",
    "a bare line feed after a size": "{s:x}\n{b}\r\n0\r\n\r\n",
    "a bare carriage return after a size": "{s:x}\r{b}\r\n0\r\n\r\n",
    "a bare line feed after a chunk": "{s:x}\r\n{b}\n0\r\n\r\n",
    "no line end after a chunk": "{s:x}\r\n{b}0\r\n\r\n",
    "other bytes after a chunk": "{s:x}\r\n{b}XX0\r\n\r\n",
    "a bare line feed after the last size": "{s:x}\r\n{b}\r\n0\n\r\n",
    "a bare line feed at the end": "{s:x}\r\n{b}\r\n0\r\n\n",
    "two bare line feeds at the end": "{s:x}\r\n{b}\r\n0\n\n",
    "a last size of zeros": "{s:x}\r\n{b}\r\n0000\r\n\r\n",
    "a last size with an extension": "{s:x}\r\n{b}\r\n0;a=b\r\n\r\n",
    "a size beyond 32 bits": "1000000{s:02x}\r\n{b}\r\n0\r\n\r\n",
    "a size beyond 64 bits": "100000000000000{s:02x}\r\n{b}\r\n0\r\n\r\n",
    "a size beyond 128 bits": "{z}{s:x}\r\n{b}\r\n0\r\n\r\n",
    "an empty size": "\r\n{b}\r\n0\r\n\r\n",
    "a size in words": "five\r\n{b}\r\n0\r\n\r\n",
    "a size with a fraction": "{s:x}.0\r\n{b}\r\n0\r\n\r\n",
    "an empty line first": "\r\n{s:x}\r\n{b}\r\n0\r\n\r\n",
    "a size with NUL": "{s:x}\0\r\n{b}\r\n0\r\n\r\n",
    "a size that is too small": "1\r\n{b}\r\n0\r\n\r\n",
    "a size that is too large": "fff\r\n{b}\r\n0\r\n\r\n",
    "a request after the last size": "0\r\n{b}",
    "a chunk after the last one": "0\r\n\r\n{s:x}\r\n{b}\r\n0\r\n\r\n",
}
TRAILERS = [
    "Content-Length: 50",
    "Transfer-Encoding: chunked",
    "Host: b",
    "Connection: close",
    "X-Forwarded-For: 6.6.6.6",
    "X-Request-Id: smuggled",
    "Content_Length: 49",
    "Upgrade: websocket",
    "Trailer: Content-Length",
    "Authorization: x",
    ":path: /smuggled",
    " X-Smuggled: 1",
    "X: y\r\n X-Smuggled: 1",
    "X\nX-Smuggled: 1",
    "X: y\rX-Smuggled: 1",
    "X: y\nX-Smuggled: 1",
    "X: y\0",
    "X",
    ": y",
    "X Y: z",
    "Expect: 100-continue",
    "Content-Encoding: gzip",
    "Cookie: a=b",
    "X-Harmless: 1",
]
TARGETS = [
    "/..%2f..%2fsmuggled",
    "/%2e%2e/smuggled",
    "/a/../smuggled",
    "/a/..;/smuggled",
    "//smuggled",
    "///",
    "/a//b",
    "/%",
    "/%zz",
    "/%00",
    "/%0d%0aX-Smuggled:%201",
    "/%0a%0aGET%20/smuggled",
    "/\\smuggled",
    "/..\\smuggled",
    "/a%5c..%5csmuggled",
    "/a?b#c",
    "/a#b",
    "/a b",
    "/a\tb",
    "/a\x0bb",
    "/\xff",
    "/\x7f",
    "http://a/trial",
    "http://b/trial",
    "http://a:80/trial",
    "http://a@b/trial",
    "http:///trial",
    "http:/trial",
    "https://a/trial",
    "HTTP://a/trial",
    "a/trial",
    "a:80",
    "*",
    "?x",
    "",
    "/a?b=c d",
    "/a?b HTTP/1.1",
    "/trial HTTP/1.1",
    "/a?%",
    "/a;b=c/d",
    "/.",
    "/..",
    "/a/.",
    '/a?x="<>',
    "/[a]",
    "/{a}|^`",
]


def post(*lines, body=b"", first="POST /trial HTTP/1.1", host="Host: a"):
    head = [first, *([host] if host else []), "X-Mark: MARKS", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1", "replace") + body


def http1():
    """A name, what is sent (with pauses between parts of a list), and what the client then does: `stays`, `leaves` or `half-closes`."""

    def add(name, *parts, then="stays"):
        requests.append((name, parts, then))

    requests = []
    for length in LENGTHS:
        add(f"Content-Length {length!r}", post(f"Content-Length: {length}", body=ENDED))
    for first, second in (("0", "50"), ("50", "0"), ("5", "5"), ("5", "6"), ("", "5"), ("5", "")):
        add(f"Content-Length {first!r} and {second!r}", post(f"Content-Length: {first}", f"Content-Length: {second}", body=ENDED))
    for name in (
        "Content-Length ",
        " Content-Length",
        "Content_Length",
        "Content.Length",
        "Content-Length\t",
        "X: y\r\n Content-Length",
        "X: y\nContent-Length",
        "X: y\rContent-Length",
        "Content-Length\0",
        "CONTENT-LENGTH",
        "Content-Length:",
    ):
        add(f"{name!r} alone", post(f"{name}: 50", body=SMUGGLED))
        add(f"{name!r} beside a length", post("Content-Length: 5", f"{name}: 55", body=ENDED))
    for encoding in ENCODINGS:
        add(f"Transfer-Encoding {encoding!r}", post(f"Transfer-Encoding: {encoding}", body=ENDED))
        add(
            f"Content-Length, Transfer-Encoding {encoding!r}",
            post("Content-Length: 5", f"Transfer-Encoding: {encoding}", body=ENDED),
        )
        add(
            f"Transfer-Encoding {encoding!r}, Content-Length",
            post(f"Transfer-Encoding: {encoding}", "Content-Length: 4", body=CHUNK),
        )
        add(
            f"chunked, Transfer-Encoding {encoding!r}",
            post("Transfer-Encoding: chunked", f"Transfer-Encoding: {encoding}", body=ENDED),
        )
    for name in NAMES:
        add(f"{name!r}", post(f"{name}: chunked", body=ENDED))
        add(f"{name!r} beside a length", post("Content-Length: 5", f"{name}: chunked", body=ENDED))
    for name, chunks in CHUNKS.items():
        body = chunks.format(s=len(SMUGGLED), b=SMUGGLED.decode(), z="1" + "0" * 32).encode("latin-1")
        add(f"chunks: {name}", post("Transfer-Encoding: chunked", body=body))
    for trailer in TRAILERS:
        body = f"2\r\nok\r\n0\r\n{trailer}\r\n\r\n".encode("latin-1")
        add(f"trailer {trailer!r}", post("Transfer-Encoding: chunked", "Connection: TE", "TE: trailers", body=body))
    for target in TARGETS:
        add(f"target {target!r}", post(first=f"GET {target} HTTP/1.1"))
    for first in (
        "GET /trial",
        "GET /trial HTTP/0.9",
        "GET /trial HTTP/1.0",
        "GET /trial HTTP/1.2",
        "GET /trial HTTP/2.0",
        "GET  /trial HTTP/1.1",
        "GET /trial  HTTP/1.1",
        "GET\t/trial HTTP/1.1",
        " GET /trial HTTP/1.1",
        "GET /trial HTTP/1.1 ",
        "get /trial HTTP/1.1",
        "GET /trial HTTP/1.1\rX-Smuggled: 1",
        "GET /trial HTTP/1.1\nX-Smuggled: 1",
        "\nGET /trial HTTP/1.1",
        "\r\nGET /trial HTTP/1.1",
        "TRACE /trial HTTP/1.1",
        "CONNECT a:80 HTTP/1.1",
        "CONNECT /trial HTTP/1.1",
        "PRI * HTTP/2.0",
        "G\0T /trial HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "HEAD /trial HTTP/1.1",
        "DELETE /trial HTTP/1.1",
        "GET /trial HTTP/1.1\r\n X-Smuggled: 1",
    ):
        add(f"first line {first!r}", post(first=first))
        add(f"first line {first!r}, with a body", post("Content-Length: 50", first=first, body=SMUGGLED))
    for host in (
        "",
        "Host: ",
        "Host: a\r\nHost: b",
        "Host: a, b",
        "Host : a",
        " Host: a",
        "Host: a/b",
        "Host: u@a",
        "Host: a\tb",
        "Host: a\r\n b",
        "Host:a:b",
        "Host: a\0",
        "Host: [::1",
    ):
        add(f"{host!r}", post(host=host))
    for value in (
        "y\r\n z",
        "y\r\n\tX-Smuggled: 1",
        "y\nX-Smuggled: 1",
        "y\rX-Smuggled: 1",
        "y\0",
        "y\x0b",
        "y\x7f",
        "\xffy",
        "y\r\r\nX-Smuggled: 1",
        "y\n\nGET /smuggled HTTP/1.1\nHost: a\n\n",
        "y\r\n\r\r\n",
    ):
        add(f"value {value!r}", post(f"X: {value}"))
    for option in (
        "content-length",
        "transfer-encoding",
        "host",
        "close, content-length",
        "TE",
        "keep-alive, Transfer-Encoding",
        "cookie",
        "x-request-id",
    ):
        add(f"Connection: {option}", post(f"Connection: {option}", "Content-Length: 50", body=SMUGGLED))
        add(f"Connection: {option}, chunked", post(f"Connection: {option}", "Transfer-Encoding: chunked", body=ENDED))
    websocket = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    add("an upgrade to WebSocket, and a request", post(*websocket, first="GET /trial HTTP/1.1", body=SMUGGLED))
    add("an upgrade with a length", post(*websocket, "Content-Length: 50", first="GET /trial HTTP/1.1", body=SMUGGLED))
    add("an upgrade with chunks", post(*websocket, "Transfer-Encoding: chunked", first="GET /trial HTTP/1.1", body=ENDED))
    add("an upgrade without a key", post(*websocket[:3], first="GET /trial HTTP/1.1", body=SMUGGLED))
    add(
        "an upgrade of another version",
        post(*websocket[:2], "Sec-WebSocket-Version: 777", websocket[3], first="GET /trial HTTP/1.1", body=SMUGGLED),
    )
    add("an upgrade by POST", post(*websocket, body=SMUGGLED))
    for protocol in ("h2c", "h2c, websocket", "websocket, h2c", "TLS/1.0", "HTTP/2.0", ""):
        h2c = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
        add(f"an upgrade to {protocol!r}, and a request", post(*h2c, first="GET /trial HTTP/1.1", body=SMUGGLED))
        add(f"an upgrade to {protocol!r}, and HTTP/2", post(*h2c, first="GET /trial HTTP/1.1", body=PREFACE + frame(SETTINGS)))
        add(f"an upgrade to {protocol!r}, with a body", post(*h2c, "Content-Length: 50", body=SMUGGLED))
    for expected in (
        "100-continue",
        "100-Continue",
        "100-continue, x",
        "x",
        "100-continue\r\nExpect: 100-continue",
        "",
        "\x0b100-continue",
    ):
        add(f"Expect {expected!r}, the body at once", post(f"Expect: {expected}", "Content-Length: 50", body=SMUGGLED))
        add(f"Expect {expected!r}, the body later", post(f"Expect: {expected}", "Content-Length: 50"), SMUGGLED)
        add(f"Expect {expected!r}, without a body", post(f"Expect: {expected}", first="GET /trial HTTP/1.1"))
    add("Expect, and no body", post("Expect: 100-continue", "Content-Length: 50"), then="leaves")
    for method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        add(f"{method} with a length", post("Content-Length: 50", first=f"{method} /trial HTTP/1.1", body=SMUGGLED))
        add(f"{method} with chunks", post("Transfer-Encoding: chunked", first=f"{method} /trial HTTP/1.1", body=ENDED))
        add(f"{method} with a body of no length", post(first=f"{method} /trial HTTP/1.1", body=b"XX" + SMUGGLED))
    add("HTTP/1.0 with chunks", post("Transfer-Encoding: chunked", first="POST /trial HTTP/1.0", body=ENDED))
    add(
        "HTTP/1.0, kept, with a length",
        post("Connection: keep-alive", "Content-Length: 50", first="POST /trial HTTP/1.0", body=SMUGGLED),
    )
    for then in ("leaves", "half-closes"):
        add(f"half a length, then it {then}", post("Content-Length: 100", body=SMUGGLED), then=then)
        add(f"half a chunk, then it {then}", post("Transfer-Encoding: chunked", body=b"fff\r\n" + SMUGGLED), then=then)
        add(
            f"no last chunk, then it {then}",
            post("Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n" % (len(SMUGGLED), SMUGGLED)),
            then=then,
        )
        add(f"no end of the trailers, then it {then}", post("Transfer-Encoding: chunked", body=b"0\r\nX: y\r\n"), then=then)
        add(f"half a head, then it {then}", post()[:-2], then=then)
        add(f"a whole request, then it {then}", post("Content-Length: 50", body=SMUGGLED), then=then)
    whole = post("Transfer-Encoding: chunked", body=CHUNK)
    add("chunks byte by byte", *(whole[place : place + 1] for place in range(len(whole))))
    add("a head in two parts, cut in a line end", *whole.partition(b"\r\n")[::2])
    add("many fields", post(*(f"X-{number}: y" for number in range(90))))
    add("a method to override", post("X-HTTP-Method-Override: CONNECT", "Content-Length: 50", body=SMUGGLED))
    add(
        "forged fields",
        post("X-Request-Id: smuggled\x0b", "X-Forwarded-For: 6.6.6.6", "X_Request_Id: smuggled", "X-Tollgate-Smuggled: 1"),
    )
    return requests


INJECTED = [
    "1\r\nX-Smuggled: 1",
    "1\nX-Smuggled: 1",
    "1\rX-Smuggled: 1",
    "1\r\n\r\n" + SMUGGLED.decode(),
    "1\r\nContent-Length: 0\r\n\r\n" + SMUGGLED.decode(),
    "1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "1\0",
    "1\x0b",
    "1\x7f",
    "\t1",
    " 1",
    "1 ",
    "1\t",
    "1\xff",
    "1: 2",
    "1\x85X-Smuggled: 1",
]


def fields(*more, method="POST", path="/trial", pseudo=None):
    first = pseudo if pseudo is not None else [(":method", method), (":scheme", "http"), (":path", path), (":authority", "a")]
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*first, ("x-mark", "MARKS"), *more)]


def request(*more, body=None, trailers=None, **head):
    """One on stream 1."""
    sent = headers(1, fields(*more, **head), end=body is None and trailers is None)
    if body is not None:
        sent += data(1, body, end=trailers is None)
    if trailers is not None:
        sent += headers(1, [(name.encode("latin-1"), value.encode("latin-1")) for name, value in trailers], end=True)
    return sent


def http2():
    """A name, and frames on stream 1 (and 3); the mark has as many bytes."""

    def add(name, sent):
        requests.append((name, sent))

    requests = []
    for text in INJECTED:
        add(f"value {text!r}", request(("x-a", text)))
        add(f"name {text!r}", request((f"x{text}", "y")))
        add(f"name and value in one, {text!r}", request((f"x: {text}", "y")))
        add(f"cookie {text!r}", request(("cookie", text)))
        add(f"path {text!r}", request(path=f"/{text}"))
        add(f"method {text!r}", request(method=f"GET{text}"))
        add(
            f"authority {text!r}",
            request(pseudo=[(":method", "GET"), (":scheme", "http"), (":path", "/trial"), (":authority", f"a{text}")]),
        )
        add(
            f"scheme {text!r}",
            request(pseudo=[(":method", "GET"), (":scheme", f"http{text}"), (":path", "/trial"), (":authority", "a")]),
        )
        add(f"trailer {text!r}", request(("te", "trailers"), body=b"ok", trailers=[("x-a", text)]))
        add(f"name of a trailer {text!r}", request(("te", "trailers"), body=b"ok", trailers=[(f"x{text}", "y")]))
        add(f"host {text!r}", request(("host", f"a{text}")))
    for encoding in ("chunked", "Chunked", "identity", "gzip, chunked", "trailers", ""):
        add(f"transfer-encoding {encoding!r}", request(("transfer-encoding", encoding), body=ENDED))
        add(
            f"transfer-encoding {encoding!r} and a length",
            request(("transfer-encoding", encoding), ("content-length", "55"), body=ENDED),
        )
    for name in (
        "Transfer-Encoding",
        "transfer_encoding",
        "transfer.encoding",
        "transfer-encoding ",
        " transfer-encoding",
        "transfer-encoding:",
        "\ttransfer-encoding",
        "transfer-encoding\0",
        "x: y\r\ntransfer-encoding",
        "transfer-encodıng".encode().decode("latin-1"),
    ):
        add(f"{name!r}", request((name, "chunked"), body=ENDED))
    for name in (
        "content_length",
        "Content-Length",
        "content.length",
        "content-length ",
        " content-length",
        "x: y\r\ncontent-length",
        "content-length:",
    ):
        add(f"{name!r}", request((name, "5"), body=ENDED))
        add(f"{name!r} beside a length", request(("content-length", "55"), (name, "5"), body=ENDED))
    for name, value in (
        ("connection", "close"),
        ("connection", "transfer-encoding"),
        ("keep-alive", "1"),
        ("proxy-connection", "close"),
        ("upgrade", "h2c"),
        ("upgrade", "websocket"),
        ("http2-settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
        ("te", "chunked"),
        ("te", "trailers, chunked"),
        ("te", "trailers"),
        ("trailer", "content-length"),
        ("expect", "100-continue"),
        ("expect", "x"),
        ("proxy-authorization", "x"),
        ("x-request-id", "of-MARKS"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x_forwarded_for", "6.6.6.6"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ):
        add(f"{name}: {value}", request((name, value), body=ENDED))
        add(f"{name}: {value}, with a length", request((name, value), ("content-length", "55"), body=ENDED))
    for length in ("0", "5", "55", "56", "100", *LENGTHS[:-3]):
        length = length.encode().decode("latin-1")
        add(f"content-length {length!r} of 55", request(("content-length", length), body=ENDED))
        add(f"content-length {length!r} without a body", request(("content-length", length)))
    add("a length twice", request(("content-length", "55"), ("content-length", "55"), body=ENDED))
    add("two lengths", request(("content-length", "55"), ("content-length", "5"), body=ENDED))
    for length in ("5", "55", "60"):
        add(
            f"content-length {length} before trailers",
            request(("content-length", length), ("te", "trailers"), body=ENDED, trailers=[("x-a", "b")]),
        )
    for name, value in (
        ("content-length", "5"),
        ("content-length", "55"),
        ("transfer-encoding", "chunked"),
        ("host", "b"),
        ("connection", "close"),
        (":path", "/smuggled"),
        (":status", "200"),
        ("x-forwarded-for", "6.6.6.6"),
        ("authorization", "x"),
        ("trailer", "x"),
        ("X-Smuggled", "1"),
        ("te", "trailers"),
        ("upgrade", "h2c"),
        ("content_length", "5"),
        ("expect", "100-continue"),
        ("x-harmless", "1"),
    ):
        add(f"trailer {name}: {value}", request(("te", "trailers"), body=ENDED, trailers=[(name, value)]))
        add(f"only trailer {name}: {value}", request(("te", "trailers"), trailers=[(name, value)]))
    method, scheme, path, authority = [(":method", "POST"), (":scheme", "http"), (":path", "/trial"), (":authority", "a")]
    for name, pseudo in (
        ("no method", [scheme, path, authority]),
        ("no scheme", [method, path, authority]),
        ("no path", [method, scheme, authority]),
        ("no authority", [method, scheme, path]),
        ("two methods", [method, method, scheme, path, authority]),
        ("two schemes", [method, scheme, scheme, path, authority]),
        ("two paths", [method, scheme, path, (":path", "/smuggled"), authority]),
        ("two authorities", [method, scheme, path, authority, (":authority", "b")]),
        ("an unknown one", [method, scheme, path, authority, (":smuggled", "1")]),
        ("a status", [method, scheme, path, authority, (":status", "200")]),
        ("an empty name", [method, scheme, path, authority, ("", "1")]),
        ("only a colon", [method, scheme, path, authority, (":", "1")]),
        ("a path in capitals", [method, scheme, (":Path", "/trial"), authority]),
        ("a protocol", [method, scheme, path, authority, (":protocol", "websocket")]),
        ("an empty method", [(":method", ""), scheme, path, authority]),
        ("an empty scheme", [method, (":scheme", ""), path, authority]),
        ("an empty path", [method, scheme, (":path", ""), authority]),
        ("an empty authority", [method, scheme, path, (":authority", "")]),
        ("another scheme", [method, (":scheme", "ftp"), path, authority]),
        ("https", [method, (":scheme", "https"), path, authority]),
        ("CONNECT", [(":method", "CONNECT"), (":authority", "a:80")]),
        ("CONNECT with a path", [(":method", "CONNECT"), scheme, path, authority]),
        ("CONNECT for WebSocket", [(":method", "CONNECT"), (":protocol", "websocket"), scheme, path, authority]),
        ("TRACE", [(":method", "TRACE"), scheme, path, authority]),
        ("a user", [method, scheme, path, (":authority", "u@a")]),
        ("two hosts", [method, scheme, path, (":authority", "a,b")]),
        ("a path in the authority", [method, scheme, path, (":authority", "a/smuggled?")]),
        ("a request line as method", [(":method", "GET /smuggled HTTP/1.1"), scheme, path, authority]),
        ("a request line as path", [method, scheme, (":path", "/trial HTTP/1.1"), authority]),
        ("a URL as scheme", [method, (":scheme", "http://b/smuggled?"), path, authority]),
    ):
        add(f"pseudo-header fields: {name}", request(pseudo=pseudo, body=ENDED))
    add("pseudo-header fields late", headers(1, [*fields(pseudo=[method, scheme, path]), (b":authority", b"a")], end=True))
    add("a second path late", headers(1, [*fields(), (b":path", b"/smuggled")], end=True))
    for host in (["a"], ["b"], ["a", "a"], ["a", "b"], ["A"], ["a:80"], [""]):
        add(f"hosts {host}", request(*(("host", one) for one in host)))
    for target in TARGETS:
        add(f"path {target!r}", request(path=target, method="GET"))
    for verb in ("get", "G T", "GET\t", "G\xe9T", "PRI", "x" * 100):
        add(f"method {verb!r}", request(method=verb, body=ENDED))
    for verb in ("GET", "HEAD", "DELETE", "OPTIONS"):
        add(f"{verb} with a body", request(method=verb, body=ENDED))
        add(f"{verb} with a body and a length", request(("content-length", "55"), method=verb, body=ENDED))
    # Frames.
    head = headers(1, fields())
    long_head = headers(1, fields(("content-length", "55")))
    add("a body of chunks", head + data(1, CHUNK, end=True))
    add(
        "parts of one byte",
        head + b"".join(data(1, ENDED[place : place + 1]) for place in range(len(ENDED))) + data(1, b"", end=True),
    )
    add("empty parts", head + data(1, b"") * 20 + data(1, ENDED) + data(1, b"") * 20 + data(1, b"", end=True))
    add("a padded part", head + frame(DATA, PADDED | END_STREAM, 1, bytes([60]) + ENDED + SMUGGLED + b"x" * 10))
    add("padding beyond the frame", head + frame(DATA, PADDED | END_STREAM, 1, bytes([200]) + ENDED))
    add("a padded head", frame(HEADERS, PADDED | END_HEADERS | END_STREAM, 1, bytes([50]) + block(fields()) + SMUGGLED))
    add("a head with a priority", frame(HEADERS, WITH_PRIORITY | END_HEADERS | END_STREAM, 1, bytes(4) + b"\x10" + block(fields())))
    add(
        "a head in pieces",
        frame(HEADERS, END_STREAM, 1, block(fields())[:9])
        + frame(CONTINUATION, 0, 1, block(fields())[9:20])
        + frame(CONTINUATION, END_HEADERS, 1, block(fields())[20:]),
    )
    add("a head without an end", frame(HEADERS, END_STREAM, 1, block(fields())))
    add(
        "a part within a head",
        frame(HEADERS, 0, 1, block(fields())[:9]) + data(1, ENDED) + frame(CONTINUATION, END_HEADERS, 1, block(fields())[9:]),
    )
    add("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, block(fields())))
    add("a part before the head", data(1, ENDED) + head + data(1, b"", end=True))
    add("a part after the end", head + data(1, ENDED, end=True) + data(1, SMUGGLED))
    add("a part after the trailers", request(body=ENDED, trailers=[("x-a", "b")]) + data(1, SMUGGLED, end=True))
    add("trailers that do not end", head + data(1, ENDED) + headers(1, [(b"x-a", b"b")]))
    add("a second head", head + headers(1, fields(path="/smuggled"), end=True))
    add("the stream again", head + data(1, ENDED, end=True) + headers(1, fields(path="/smuggled"), end=True))
    add("a stream of the server", headers(2, fields(), end=True))
    add("stream 0", headers(0, fields(), end=True))
    add("an earlier stream", headers(5, fields(), end=True) + headers(3, fields(), end=True))
    add("a reset in the body", long_head + data(1, ENDED[:20]) + frame(RST_STREAM, 0, 1, bytes([0, 0, 0, 8])))
    add("a reset in a body of no length", head + data(1, ENDED[:20]) + frame(RST_STREAM, 0, 1, bytes([0, 0, 0, 8])))
    add("a reset before the body", long_head + frame(RST_STREAM, 0, 1, bytes([0, 0, 0, 8])))
    add("a reset after the end", head + data(1, ENDED, end=True) + frame(RST_STREAM, 0, 1, bytes([0, 0, 0, 0])))
    add("a body that waits", long_head + data(1, ENDED[:20]))
    add("a body of no length that waits", head + data(1, ENDED))
    add("a body with GOAWAY", long_head + data(1, ENDED[:20]) + frame(GOAWAY, payload=bytes(8)) + data(1, ENDED[20:], end=True))
    add(
        "a push",
        head
        + frame(PUSH_PROMISE, END_HEADERS, 1, bytes([0, 0, 0, 2]) + block(fields(path="/smuggled")))
        + data(1, ENDED, end=True),
    )
    add("a window of 0", head + frame(WINDOW_UPDATE, 0, 1, bytes(4)) + data(1, ENDED, end=True))
    add("a window that overflows", head + frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff") + data(1, ENDED, end=True))
    add("a priority on itself", frame(PRIORITY, 0, 1, bytes([0, 0, 0, 1, 0])) + head + data(1, ENDED, end=True))
    add("an unknown frame", head + frame(0x42, 0xFF, 1, SMUGGLED) + data(1, ENDED, end=True))
    add(
        "settings within a body",
        head + frame(SETTINGS, payload=b"\0\x04\0\0\0\0") + data(1, ENDED, end=True) + frame(SETTINGS, payload=b"\0\x04\0\x10\0\0"),
    )
    add("the preface again", head + PREFACE + data(1, ENDED, end=True))
    add("HTTP/1.1 within HTTP/2", head + SMUGGLED)
    add(
        "two bodies at once",
        head
        + headers(3, fields())
        + data(1, ENDED[:9])
        + data(3, CHUNK[:9])
        + data(1, ENDED[9:], end=True)
        + data(3, CHUNK[9:], end=True),
    )
    add("cookies in pieces", request(*(("cookie", f"a={number}") for number in range(9)), ("cookie", "b=\r\nX-Smuggled: 1")))
    add("a name of the table", frame(HEADERS, END_HEADERS | END_STREAM, 1, block(fields()) + b"\xff\xff\xff\xff\x0f"))
    add("an index of 0", frame(HEADERS, END_HEADERS | END_STREAM, 1, block(fields()) + b"\x80"))
    add("half a field", frame(HEADERS, END_HEADERS | END_STREAM, 1, block(fields()) + b"\0\x05ab"))
    return requests
