"""Calls the doors of Envoy: grpc_call.py TARGET [AUTHORITY [CERTIFICATE KEY]] reads calls, a line of JSON each, and prints what
became of each. With an authority, in a file as the others, over TLS.

The messages are written down here from their definitions, by field and type: v is an integer, s text, b bytes, a mapping a
message, a list of one a repeated field.
"""
import json
import sys

import grpc

ENTRY = {1: ("key", "s"), 2: ("value", "s")}
WRAPPER = {1: ("value", "v")}
DESCRIPTOR = {1: ("entries", [ENTRY]), 2: ("limit", {1: ("requests_per_unit", "v"), 2: ("unit", "v")}), 3: ("hits_addend", WRAPPER)}
HEADER = {1: ("key", "s"), 2: ("value", "s"), 3: ("raw_value", "b")}
OPTION = {1: ("header", HEADER), 2: ("append", WRAPPER)}
LIMIT = {1: ("requests_per_unit", "v"), 2: ("unit", "v"), 3: ("name", "s")}
STATUS = {1: ("code", "v"), 2: ("current_limit", LIMIT), 3: ("limit_remaining", "v"), 4: ("duration_until_reset", {1: ("seconds", "v")})}
HTTP = {
    2: ("method", "s"), 3: ("headers", [ENTRY]), 4: ("path", "s"), 5: ("host", "s"), 6: ("scheme", "s"),
    13: ("header_map", {1: ("headers", [HEADER])}),
}
CONTEXT = {
    1: ("source", {1: ("address", {1: ("socket_address", {2: ("address", "s"), 3: ("port_value", "v")})})}),
    4: ("request", {2: ("http", HTTP)}),
    10: ("context_extensions", [ENTRY]),
}
METHODS = {
    "ShouldRateLimit": (
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        {1: ("domain", "s"), 2: ("descriptors", [DESCRIPTOR]), 3: ("hits_addend", "v")},
        {1: ("overall_code", "v"), 2: ("statuses", [STATUS]), 3: ("response_headers_to_add", [HEADER]), 5: ("raw_body", "s")},
    ),
    "AuthorizationCheck": (
        "/envoy.service.auth.v3.Authorization/Check",
        {1: ("attributes", CONTEXT)},
        {
            1: ("status", {1: ("code", "v")}),
            2: ("denied_response", {1: ("status", {1: ("code", "v")}), 2: ("headers", [OPTION]), 3: ("body", "s")}),
            3: ("ok_response", {5: ("headers_to_remove", ["s"]), 6: ("response_headers_to_add", [OPTION]), 8: ("query_parameters_to_remove", ["s"])}),
        },
    ),
    "HealthCheck": ("/grpc.health.v1.Health/Check", {1: ("service", "s")}, {1: ("status", "v")}),
    "Unknown": ("/grpc.health.v1.Health/Watch", {}, {}),
}


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def encode(message, fields):
    out = b""
    for number, (name, kind) in fields.items():
        values = message.get(name, [])
        for value in values if isinstance(kind, list) else [values] if name in message else []:
            inner = kind[0] if isinstance(kind, list) else kind
            if inner == "v":
                out += varint(number << 3) + varint(value)
                continue
            if inner == "s":
                data = value.encode()
            elif inner == "b":
                data = bytes.fromhex(value)
            else:
                data = encode(value, inner)
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def decode(data, fields):
    message, at = {}, 0

    def integer():
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(data):
        key = integer()
        name, kind = fields[key >> 3]
        inner = kind[0] if isinstance(kind, list) else kind
        value = integer()
        if inner != "v":
            assert key & 7 == 2, key
            part, at = data[at:at + value], at + value
            value = part.decode() if inner == "s" else part.hex() if inner == "b" else decode(part, inner)
        else:
            assert key & 7 == 0, key
        if isinstance(kind, list):
            message.setdefault(name, []).append(value)
        else:
            message[name] = value
    return message


def channel_to(target, *files):
    if not files:
        return grpc.insecure_channel(target)
    authority, *own = (open(file, "rb").read() for file in files)
    certificate, key = own or (None, None)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(authority, key, certificate))


with channel_to(*sys.argv[1:]) as channel:
    for line in sys.stdin:
        call = json.loads(line)
        path, request, response = METHODS[call["method"]]
        data = bytes.fromhex(call["raw"]) if "raw" in call else encode(call["message"], request)
        try:
            answer = channel.unary_unary(path)(data, timeout=10)
            print(json.dumps({"code": "OK", "message": decode(answer, response)}), flush=True)
        except grpc.RpcError as error:
            print(json.dumps({"code": error.code().name, "details": error.details()}), flush=True)
