"""The calls of a language model that benches/budgets.py makes, and the upstream that answers them and counts their tokens."""

import asyncio
import collections
import contextlib
import itertools
import json
import random
import re
import statistics
import time

# In tokens: the median and the spread (sigma of the logarithm) of the prompts, the same of the answers, the `max_tokens` that
# each request names, and the share of the calls that are streamed.
MIXES = {
    "short chats": {"input": (150, 0.5), "output": (120, 0.6), "max_tokens": 512, "streamed": 0.5},
    "long streams": {"input": (600, 0.5), "output": (1200, 0.4), "max_tokens": 4096, "streamed": 1.0},
    # One answer in twenty is ten times as long as the median.
    "mixed": {"input": (200, 0.8), "output": (150, 1.4), "max_tokens": 4096, "streamed": 0.7},
}
SEED, MEAN_CALLS = 20, 200
# How an upstream answers: a moment for the prompt, and then one for each token.
FIRST, EACH = 0.03, 0.0003
# How long a caller waits that was refused, and how long nothing runs before a round ends.
AGAIN, IDLE = 0.1, 2


class Mix:
    """The calls of a mix: (tokens of the prompt, tokens of the answer, whether it is streamed)."""

    def __init__(self, name):
        self.name, self.key, self.of = name, name.replace(" ", "-"), MIXES[name]
        costs = [sum(call[:2]) for call in itertools.islice(self.calls(SEED), 20000)]
        self.mean = round(statistics.mean(costs))
        self.limit = MEAN_CALLS * self.mean
        self.worst = max(call[0] for call in itertools.islice(self.calls(SEED), 20000)) + self.of["max_tokens"]

    def calls(self, seed):
        draw = random.Random(f"{self.name} {seed}")

        def tokens(name):
            median, spread = self.of[name]
            return max(1, min(round(median * draw.lognormvariate(0, spread)), self.of["max_tokens"]))

        while True:
            yield tokens("input"), tokens("output"), draw.random() < self.of["streamed"]


def body_of(call, mix, name):
    """A request for one call of the round with this name."""
    prompt, written, streamed = call
    # Four bytes for each token of the prompt. It begins with what the upstream must know.
    text = f"{prompt} {written} {name} ".ljust(4 * prompt, "a")
    request = {"model": "fake", "max_tokens": mix.of["max_tokens"], "messages": [{"role": "user", "content": text}]}
    if streamed:
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
                prompt, written, name = (content if isinstance(content, str) else content[0]["text"]).split()[:3]
                counts = self.counts[name]
                counts.tokens += int(prompt) + int(written)
                counts.running += 1
                try:
                    await self.answer(int(prompt), int(written), bool(request.get("stream")), writer)
                finally:
                    counts.running -= 1
                    counts.active = time.monotonic()
                if b"connection: close" in head.lower():
                    break
        writer.close()

    async def answer(self, prompt, written, streamed, writer):
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        base = {"id": "c", "created": 1, "model": "fake"}
        await asyncio.sleep(FIRST)
        if not streamed:
            await asyncio.sleep(EACH * written)
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
            await asyncio.sleep(EACH * tokens)
            chunk([{"index": 0, "delta": {"role": "assistant", "content": "abcd" * tokens}, "finish_reason": None}])
            await writer.drain()
        chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        chunk([], usage=usage)
        event(b"[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
