"""A client of HTTP/2 that can send what is invalid: frames are bytes, and fields are not checked."""

import socket
import struct
import time

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 32
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# The other side keeps no table of fields, so that the first field of each block can be read alone; and sends what it has.
OUR_SETTINGS = struct.pack(">HIHI", 1, 0, 4, 1 << 20)
STATUSES = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">IBBI", len(payload), kind, flags, stream)[1:] + payload


def text(value):
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest, out = len(value) - 127, b"\x7f"
    while rest >= 128:
        out += bytes([rest % 128 | 128])
        rest //= 128
    return out + bytes([rest]) + value


def block(fields):
    """A block of literal fields that enter no table."""
    return b"".join(b"\0" + text(name) + text(value) for name, value in fields)


def headers(stream, fields, end=False):
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block(fields))


def data(stream, payload, end=False):
    return b"".join(
        frame(DATA, END_STREAM if end and place + 16_384 >= len(payload) else 0, stream, payload[place : place + 16_384])
        for place in range(0, max(1, len(payload)), 16_384)
    )


def status(payload):
    """The status in a block of fields, which begins with it."""
    while payload and payload[0] & 0xE0 == 0x20:
        payload = payload[1:]
    if payload[0] & 0x80:
        return STATUSES[payload[0] & 0x7F]
    # A literal whose name has index 8; of more than 15 with a further byte.
    length = payload[1]
    value = payload[2 : 2 + (length & 0x7F)]
    if not length & 0x80:
        return int(value)
    # In the code of Huffman, 0 to 2 have five bits, 3 to 9 six.
    bits, digits = "".join(f"{byte:08b}" for byte in value), ""
    while len(digits) < 3:
        if bits[:5] in ("00000", "00001", "00010"):
            digits, bits = digits + str(int(bits[:5], 2)), bits[5:]
        else:
            digits, bits = digits + str(int(bits[:6], 2) - 0b011001 + 3), bits[6:]
    return int(digits)


class Connection:
    """What comes on each stream: `statuses`, `bodies`, and how it `ended`: whole, reset."""

    def __init__(self, port, timeout=10):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.sendall(
            PREFACE + frame(SETTINGS, payload=OUR_SETTINGS) + frame(WINDOW_UPDATE, payload=struct.pack(">I", 1 << 24))
        )
        self.read, self.statuses, self.bodies, self.ended, self.closed = b"", {}, {}, {}, False

    def send(self, sent):
        try:
            self.socket.sendall(sent)
        except OSError:
            pass

    def until(self, done, seconds):
        """Reads until that is so, the connection is closed, or nothing more comes in time."""
        end = time.monotonic() + seconds
        while not done(self) and not self.closed and (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                part = self.socket.recv(65536)
            except TimeoutError:
                return
            except OSError:
                part = b""
            self.closed = not part
            self.read += part
            while len(self.read) >= 9 and len(self.read) >= 9 + (length := int.from_bytes(self.read[:3], "big")):
                kind, flags, stream = struct.unpack(">BBI", self.read[3:9])
                payload, self.read = self.read[9 : 9 + length], self.read[9 + length :]
                self.take(kind, flags, stream, payload)

    def take(self, kind, flags, stream, payload):
        if kind == HEADERS and stream not in self.ended:
            if payload[0] & 0xE0 == 0x20 or payload[0] & 0x80 or payload[0] & 0x0F == 8:
                self.statuses.setdefault(stream, []).append(status(payload))
        elif kind == DATA:
            self.bodies[stream] = self.bodies.get(stream, b"") + payload
        elif kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK))
        elif kind == RST_STREAM:
            self.ended.setdefault(stream, "reset")
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            self.ended.setdefault(stream, "whole")

    def close(self):
        self.socket.close()
