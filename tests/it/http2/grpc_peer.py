"""A server and a client of gRPC, of messages that are plain bytes.

    grpc_peer.py server [CERT KEY]         prints its port, then a line for each call that ended
    grpc_peer.py client TARGET [CA NAME]   makes calls, and prints what became of each
"""
import sys
import threading
import time
from concurrent import futures

import grpc

SERVICE = "test.Echo"
LARGE = 3_000_000
# In seconds. A pause within a call, longer than the timeout of bodies that are no calls.
PAUSE = 0.5
# Of a call that is not answered: long enough that it reaches the server on a busy machine.
DEADLINE = 1.5


# The server has a call that nobody answers.
has_begun = threading.Event()


def log(*words):
    print(*words, flush=True)


def unary(request, context):
    metadata = dict(context.invocation_metadata())
    if request == b"fail":
        context.set_trailing_metadata((("x-detail", "why"), ("x-bytes-bin", b"\0\xff")))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "on purpose \N{EURO SIGN}")
    if request == b"hang":
        ended = threading.Event()
        context.add_callback(ended.set)
        began = time.monotonic()
        remaining = context.time_remaining()
        ended.wait(30)
        log("hung", 0 < remaining <= 2 * DEADLINE, 0.2 < time.monotonic() - began < 15)
        return b""
    if request == b"wait":
        ended = threading.Event()
        context.add_callback(ended.set)
        has_begun.set()
        log("given up", ended.wait(30), (context.time_remaining() or 1e9) > 1e6)
        return b""
    if request == b"has begun":
        has_begun.wait(30)
    context.send_initial_metadata((("x-initial", metadata.get("x-own", "none")),))
    context.set_trailing_metadata((("x-trailing", "last"),))
    return request


def upload(requests, context):
    return b",".join(requests)


def download(request, context):
    for number in range(int(request)):
        time.sleep(PAUSE if number == 1 else 0)
        yield b"%d" % number


def both(requests, context):
    for request in requests:
        yield b"<" + request + b">"


def serve(arguments):
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Upload": grpc.stream_unary_rpc_method_handler(upload),
        "Download": grpc.unary_stream_rpc_method_handler(download),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    }
    options = [("grpc.max_receive_message_length", 2 * LARGE)]
    server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if arguments:
        certificate, key = (open(name, "rb").read() for name in arguments)
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    log(port)
    sys.stdin.read()


def call(target, arguments):
    options = [("grpc.max_receive_message_length", 2 * LARGE)]
    if arguments:
        authority, name = arguments
        credentials = grpc.ssl_channel_credentials(open(authority, "rb").read())
        options.append(("grpc.ssl_target_name_override", name))
        channel = grpc.secure_channel(target, credentials, options)
    else:
        channel = grpc.insecure_channel(target, options)
    path = f"/{SERVICE}/".__add__
    single = channel.unary_unary(path("Unary"))

    reply, info = single.with_call(b"hello", metadata=(("x-own", "mine"),), timeout=30)
    initial, trailing = dict(info.initial_metadata()), dict(info.trailing_metadata())
    log("unary", reply, initial.get("x-initial"), trailing.get("x-trailing"), info.code().name)
    log("large", len(single(b"x" * LARGE, timeout=30)))
    log("empty", single(b"", timeout=30))
    log("upload", channel.stream_unary(path("Upload"))(iter([b"a", b"", b"b" * 100_000]), timeout=30)[:3])
    log("download", list(channel.unary_stream(path("Download"))(b"5", timeout=30)))

    ping_pong = []
    asked = threading.Semaphore(0)

    def ask():
        for number in range(3):
            time.sleep(PAUSE if number == 1 else 0)
            yield b"%d" % number
            asked.acquire()

    for answer in channel.stream_stream(path("Both"))(ask(), timeout=30):
        ping_pong.append(answer)
        asked.release()
    log("both", ping_pong)

    try:
        single(b"fail", timeout=30)
    except grpc.RpcError as error:
        trailing = dict(error.trailing_metadata())
        log("fail", error.code().name, ascii(error.details()), trailing["x-detail"], trailing["x-bytes-bin"])
    began = time.monotonic()
    try:
        single(b"hang", timeout=DEADLINE)
    except grpc.RpcError as error:
        log("hang", error.code().name, time.monotonic() - began < 10)
    waits = single.future(b"wait", metadata=(("x-request-id", "given-up"),))
    single(b"has begun", timeout=30)
    log("cancelled", waits.cancel())
    try:
        channel.unary_unary(path("Missing"))(b"", timeout=30)
    except grpc.RpcError as error:
        log("missing", error.code().name)
    limited = channel.unary_unary("/test.Limited/Unary")
    for _ in range(2):
        try:
            limited(b"", timeout=30)
        except grpc.RpcError:
            pass
    try:
        limited(b"", timeout=30)
    except grpc.RpcError as error:
        reason = dict(error.initial_metadata() or ()) | dict(error.trailing_metadata() or ())
        log("limited", error.code().name, error.details(), "retry-after" in reason)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    serve(arguments) if command == "server" else call(arguments[0], arguments[1:])
