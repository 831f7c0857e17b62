"""The calls of a language model that benches/budgets.py makes, and the upstream that answers them and counts their tokens."""

import asyncio
import collections
import contextlib
import csv
import itertools
import json
import pathlib
import re
import statistics
import time
import typing

# By the name of a mix: the `max_tokens` that each of its requests names.
MIXES = {"short chats": 512, "long streams": 4096, "mixed": 4096, "conversations": 1024, "code": 512}
FOLDER, MEAN_CALLS = pathlib.Path(__file__).resolve().parent / "mixes", 200
# For how long an upstream reads a prompt, in seconds. The rest of the time of a call is that of its answer.
FIRST = 0.03
# How long a caller waits that was refused, and how long nothing runs before a round ends.
AGAIN, IDLE = 0.1, 2


class Call(typing.NamedTuple):
    input: int
    output: int
    milliseconds: int
    streamed: int

    @property
    def tokens(self):
        return self.input + self.output


class Mix:
    """The calls of a file in benches/mixes. benches/budget_mixes.py says where they come from."""

    def __init__(self, name):
        self.name, self.key, self.max_tokens = name, name.replace(" ", "-"), MIXES[name]
        with open(FOLDER / f"{self.key}.csv", encoding="utf-8") as file:
            self.all = [Call(*map(int, row)) for row in itertools.islice(csv.reader(file), 1, None)]
        self.mean = round(statistics.mean(call.tokens for call in self.all))
        self.limit = MEAN_CALLS * self.mean
        self.worst = max(call.input for call in self.all) + self.max_tokens

    def calls(self, number):
        """The calls of a round, in the order of the file. Each round begins at another place, and the last call is followed by the first."""
        # Prime to the number of calls.
        first = 333 * number % len(self.all)
        return itertools.cycle(self.all[first:] + self.all[:first])


def body_of(call, mix, name):
    """A request for one call of the round with this name."""
    # Four bytes for each token of the prompt. It begins with what the upstream must know.
    text = f"{call.input} {call.output} {call.milliseconds} {name} ".ljust(4 * call.input, "a")
    request = {"model": "fake", "max_tokens": mix.max_tokens, "messages": [{"role": "user", "content": text}]}
    if call.streamed:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(request).encode()


async def body(reader, head):
    if length := re.search(rb"(?i)content-length: *(\d+)", head):
        return await reader.readexactly(int(length[1]))
    whole = b""
    while size := int(await reader.readline(), 16):
        whole += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return whole


class Counts:
    """What the upstream has counted in one round."""

    def __init__(self):
        self.tokens = self.running = 0
        # When a call has begun or ended last.
        self.active = time.monotonic()

    def idle(self):
        """For how many seconds nothing has run."""
        return 0 if self.running else time.monotonic() - self.active


class Upstream:
    """Answers each call with as many tokens as its message says, and counts them for the round that its message names."""

    async def start(self):
        self.counts = collections.defaultdict(Counts)
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=1024)
        self.port, self.server = server.sockets[0].getsockname()[1], server

    async def serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if not head.startswith(b"POST"):
                    # A proxy may ask which models there are.
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                request = json.loads(await body(reader, head))
                content = request["messages"][0]["content"]
                *numbers, name = (content if isinstance(content, str) else content[0]["text"]).split()[:4]
                call = Call(*map(int, numbers), bool(request.get("stream")))
                counts = self.counts[name]
                counts.tokens += call.tokens
                counts.running += 1
                try:
                    await self.answer(call, writer)
                finally:
                    counts.running -= 1
                    counts.active = time.monotonic()
                if b"connection: close" in head.lower():
                    break
        writer.close()

    async def answer(self, call, writer):
        prompt, written, seconds, streamed = call.input, call.output, call.milliseconds / 1000, call.streamed
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        base = {"id": "c", "created": 1, "model": "fake"}
        first = min(FIRST, seconds)
        await asyncio.sleep(first)
        if not streamed:
            await asyncio.sleep(seconds - first)
            choices = [{"index": 0, "message": {"role": "assistant", "content": "abcd" * written}, "finish_reason": "stop"}]
            body = json.dumps({**base, "object": "chat.completion", "choices": choices, "usage": usage}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return await writer.drain()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

        def event(data):
            data = b"data: " + data + b"\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

        def chunk(choices, **more):
            event(json.dumps({**base, "object": "chat.completion.chunk", "choices": choices, **more}).encode())

        # At most 40 events.
        size = max(1, written // 40)
        for first in range(0, written, size):
            tokens = min(size, written - first)
            await asyncio.sleep((seconds - first) * tokens / written)
            chunk([{"index": 0, "delta": {"role": "assistant", "content": "abcd" * tokens}, "finish_reason": None}])
            await writer.drain()
        chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        chunk([], usage=usage)
        event(b"[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
