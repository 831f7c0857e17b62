#!/usr/bin/env python3
"""CPU for an event stream of 500 events: without a limit, and with one that counts its tokens.

    cargo build --release && python3 benches/event_streams.py [--rounds 12] [--streams 16]

An upstream in this program sends each event by itself, as a language model does, and names the usage in the last one but one. The
gateways take turns: one without rules, one with a limit on tokens whose client asks for the usage, and one whose gateway asks for it
and takes the event out again. CPU is the kernel's accounting of the gateway. Ratios are medians over rounds.
"""

import argparse
import asyncio
import datetime
import json
import statistics
import tempfile

import rig
from rig import median

EVENTS = 500
BUDGET = 1.25
PAUSE = 0.001
TEXT = 'data: {"id":"c-1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
USAGE = 'data: {"id":"c-1","model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":500}}\n\n'
LIMIT = """
rules:
  - name: tokens
    limit_keys: [ip:address]
    algorithm: fixed_window
    algorithm_config: {limit: 1000000000, window: 1d, cost_source: llm_tokens, reserve: 100}
"""
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "say five hundred words"}]}
ASKING = {**BODY, "stream_options": {"include_usage": True}}
CASES = {"a stream without a limit": ("", ASKING), "a stream with a limit on tokens": (LIMIT, ASKING),
         "the same, and the gateway asks for the usage": (LIMIT, BODY)}


async def answer(reader, writer):
    """Answers the requests of one connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = await reader.readexactly(int(length.split(b":")[1]))
            assert b"include_usage" in body, body
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in [TEXT] * EVENTS + [USAGE, "data: [DONE]\n\n"]:
                writer.write(f"{len(event):x}\r\n{event}\r\n".encode())
                await asyncio.sleep(PAUSE)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def streams(port, count, body):
    """Reads one stream on each of so many connections at once."""
    text = json.dumps(body).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"

    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request % (len(text), text))
        got = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200") and got.count(b"word") == EVENTS, got[:200]
        assert (b"prompt_tokens" in got) == (body is ASKING), "the usage event"
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one() for _ in range(count)))


async def measure(arguments, folder):
    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20)
    upstream = server.sockets[0].getsockname()[1]
    head = f"listen: 127.0.0.1:0\nupstream: http://127.0.0.1:{upstream}\n"
    gateways = {name: rig.Gateway(folder.write(f"{index}.yaml", head + rules))
                for index, (name, (rules, _)) in enumerate(CASES.items())}
    costs = {name: [] for name in CASES}
    with rig.ending(*(gateway.process for gateway in gateways.values())):
        for number in range(arguments.rounds + 1):
            for name, gateway in gateways.items():
                before = rig.cpu_microseconds(gateway.process.pid)
                await streams(gateway.ports["http"], arguments.streams, CASES[name][1])
                # The first round warms up.
                if number:
                    costs[name].append((rig.cpu_microseconds(gateway.process.pid) - before) / arguments.streams)
    server.close()
    await asyncio.sleep(0.1)
    return costs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--streams", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        costs = asyncio.run(measure(arguments, rig.Folder(path)))
    print(f"{datetime.date.today()}, {arguments.rounds} rounds of {arguments.streams} streams at once, {EVENTS} events each\n")
    print("| | CPU µs per stream | ratio | middle half | budget |\n|---|---|---|---|---|")
    base = costs["a stream without a limit"]
    for name, own in costs.items():
        ratios = [one / other for one, other in zip(own, base)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"| {name} | {median(own):.0f} | {middle:.3f} | {low:.3f} to {high:.3f} | {BUDGET if own is not base else ''} |")


if __name__ == "__main__":
    main()
