#!/usr/bin/env python3
"""Many callers spend one small budget of tokens: how much beyond it is spent, and how early is a call refused without need?

    cargo build --release && python3 benches/budgets.py [--rounds 5] [--callers 16 64] [--only NAME]

A mix is a list of calls of a model with their tokens, from the distribution in `MIXES` and a fixed seed. A budget is 200 times the
mean of its mix. Callers take the calls in turn; one that is refused sends the same call again after 100 ms. A round ends when nothing
has run for 2 s. The upstream names the tokens of a call as OpenAI does, and counts them by itself.

- `over` is what the upstream has counted beyond the limit, as a share of the limit.
- `false at` is what the calls that had ended had cost at the first false refusal, as a share of the limit. A refusal is false if the
  limit had room for all calls admitted so far, whether they had ended or still ran, and for the refused one. Each counts with what
  it really costs. A call counts as admitted from the moment at which it is sent.
- `unspent` is what is left of the limit in the end.

Each is the median of the rounds, and `over` has the largest in brackets. The error output has each round. Tollgate runs as two gateways on one Redis, LiteLLM as two processes on
one Redis with `tpm_limit` of a key and a window of an hour. The rows that begin with `model:` are no programs: they are the rules
below, `Kuadrant` and `ChargeAfter`, in this process.

Needs redis-server; LiteLLM comes from the Python package index.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

import rig
from rig import free_port
from slots import listening

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

TOLLGATE = """listen: 127.0.0.1:{port}
upstream: http://127.0.0.1:{upstream}
store: {{redis: {{url: 'redis://127.0.0.1:{redis}', timeout: 1s}}, gateways: 2}}
llm: {{bytes_per_token: {bytes}}}
policies:
{policies}"""
POLICY = """- name: {name}
  match: {{header:x-mix: {mix}}}
  rules:
  - name: {name}
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {{limit: {limit}, window: 366d, cost_source: llm_tokens, reserve: {reserve}}}
"""
# Keys are in a database, or come from a function like this one. A key names its limit: sk-LIMIT-NUMBER.
LITELLM_KEYS = """from litellm.proxy._types import UserAPIKeyAuth

async def key_with_limit(request, api_key):
    return UserAPIKeyAuth(api_key=api_key, tpm_limit=int(api_key.split("-")[1]))
"""
LITELLM = """model_list:
  - model_name: fake
    litellm_params: {{model: openai/fake, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none, max_retries: 0}}
general_settings: {{master_key: sk-0123456789abcdef0123456789abcdef, custom_auth: keys.key_with_limit}}
litellm_settings: {{num_retries: 0, cache: true, cache_params: {{type: redis, host: 127.0.0.1, port: {redis}, mode: default_off}}}}
router_settings: {{num_retries: 0, disable_cooldowns: true, redis_host: 127.0.0.1, redis_port: {redis}}}
"""


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


def body_of(call, mix):
    prompt, written, streamed = call
    # Four bytes for each token of the prompt. It begins with what the upstream must know.
    text = f"{prompt} {written} ".ljust(4 * prompt, "a")
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


class Upstream:
    """Answers each call with as many tokens as its message says, and counts them."""

    async def start(self):
        self.tokens = self.running = 0
        self.ended = time.monotonic()
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
                self.running += 1
                try:
                    await self.answer(request, writer)
                finally:
                    self.running -= 1
                    self.ended = time.monotonic()
                if b"connection: close" in head.lower():
                    break
        writer.close()

    async def answer(self, request, writer):
        content = request["messages"][0]["content"]
        if not isinstance(content, str):
            content = content[0]["text"]
        prompt, written = map(int, content.split()[:2])
        self.tokens += prompt + written
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        base = {"id": "c", "created": 1, "model": "fake"}
        await asyncio.sleep(FIRST)
        if not request.get("stream"):
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


async def post(port, fields, body):
    """The status of a whole answer. 0 if the connection failed."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\n{head}\r\n".encode() + body)
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return int(answer.split(maxsplit=2)[1]) if answer else 0
    except (OSError, asyncio.TimeoutError):
        return 0


class Programs:
    """Two processes of a proxy. `fields` makes the header fields of a caller of a mix."""

    def __init__(self, ports, fields):
        self.ports, self.fields = ports, fields

    def begin(self, mix, name):
        async def ask(number, call):
            return await post(self.ports[number % len(self.ports)], self.fields(mix, name), body_of(call, mix))
        return ask


class Kuadrant:
    """A model: one counter for all gateways. A call passes while the counter is below the limit, and counts when it has ended."""

    def __init__(self, upstream):
        self.upstream = upstream

    def begin(self, mix, _name):
        spent = 0

        async def ask(_number, call):
            nonlocal spent
            # The way to the counter and back.
            await asyncio.sleep(0.001)
            if spent >= mix.limit:
                return 429
            status = await post(self.upstream.port, {}, body_of(call, mix))
            spent += sum(call[:2])
            return status
        return ask


class ChargeAfter:
    """A model: as `Kuadrant`, but each of two gateways has a counter, and they tell each other once a second what they have counted."""

    def __init__(self, upstream):
        self.upstream = upstream

    def begin(self, mix, _name):
        known, new, told = 0, [0, 0], time.monotonic()

        async def ask(number, call):
            nonlocal known, told
            gateway = number % 2
            if time.monotonic() - told >= 1:
                known, new[:], told = known + sum(new), [0, 0], time.monotonic()
            if known + new[gateway] >= mix.limit:
                return 429
            status = await post(self.upstream.port, {}, body_of(call, mix))
            new[gateway] += sum(call[:2])
            return status
        return ask


class Round:
    """What the callers saw: calls that were admitted, and refusals."""

    def __init__(self, mix, callers, seed, upstream):
        self.mix, self.callers, self.calls, self.upstream = mix, callers, mix.calls(seed), upstream
        # (sent, ended, tokens), and (refused, tokens).
        self.admitted, self.refused = [], []

    async def play(self, ask):
        self.upstream.ended = time.monotonic()
        await asyncio.gather(*[self.caller(number, ask) for number in range(self.callers)])
        return self

    async def caller(self, number, ask):
        call, errors = next(self.calls), 0
        while self.upstream.running or time.monotonic() - self.upstream.ended < IDLE:
            sent = time.monotonic()
            status = await ask(number, call)
            now, tokens = time.monotonic(), sum(call[:2])
            if status == 200:
                self.admitted.append((sent, now, tokens))
                call = next(self.calls)
            elif status == 429:
                self.refused.append((now, tokens))
                await asyncio.sleep(AGAIN)
            else:
                errors += 1
                if errors > 20:
                    sys.exit(f"answered with {status}")
                await asyncio.sleep(AGAIN)

    def over(self):
        return sum(tokens for _, _, tokens in self.admitted) - self.mix.limit

    def false_at(self):
        """What had ended at the first false refusal. `None` without one."""
        begun = sorted((sent, tokens) for sent, _, tokens in self.admitted)
        sums = list(itertools.accumulate((tokens for _, tokens in begun), initial=0))
        passed = 0
        for refused, tokens in sorted(self.refused):
            while passed < len(begun) and begun[passed][0] <= refused:
                passed += 1
            if sums[passed] + tokens <= self.mix.limit:
                return sum(cost for _, end, cost in self.admitted if end <= refused)
        return None


def percent(share):
    return "never" if share is None else f"{100 * share:.1f} %"


async def measure(name, system, arguments, upstream, count):
    """By the mix and the number of callers: `over`, `false at` and `unspent` of the rounds."""
    found = {}
    for mix in map(Mix, MIXES):
        for callers in arguments.callers:
            rounds = found[mix.name, callers] = []
            for seed in range(arguments.rounds):
                before, begun = upstream.tokens, time.monotonic()
                played = await Round(mix, callers, f"{SEED} {seed}", upstream).play(system.begin(mix, f"{next(count)}"))
                counted = upstream.tokens - before
                if counted != played.over() + mix.limit:
                    sys.exit(f"{name}, {mix.name}: the upstream counted {counted}, the callers {played.over() + mix.limit}")
                at = played.false_at()
                at = None if at is None else at / mix.limit
                rounds.append((max(0, played.over()) / mix.limit, at, max(0, -played.over()) / mix.limit))
                print(f"# {name}, {mix.name}, {callers}: {len(played.admitted)} admitted, {len(played.refused)} refused, "
                      f"{time.monotonic() - begun:.1f} s, over {percent(rounds[-1][0])}, false at {percent(at)}, unspent "
                      f"{percent(rounds[-1][2])}", file=sys.stderr, flush=True)
    return found


def over(rounds):
    shares = [share for share, _, _ in rounds]
    return f"{percent(statistics.median(shares))} ({percent(max(shares))})"


def false_at(rounds):
    # A round without a false refusal is above all others.
    shares = sorted((at for _, at, _ in rounds), key=lambda at: (at is None, at or 0))
    return percent(shares[len(shares) // 2])


def unspent(rounds):
    return percent(statistics.median(left for _, _, left in rounds))


def print_table(title, cell, found, callers):
    print(f"\n{title}:\n\n| | {' | '.join(f'{mix}, {number}' for mix in MIXES for number in callers)} |")
    print(f"|---|{'---|' * (len(MIXES) * len(callers))}")
    for name, cells in found.items():
        print(f"| {name} | {' | '.join(cell(cells[mix, number]) for mix in MIXES for number in callers)} |")


def policies(reserve):
    """`reserve` makes the reservation of a mix."""
    return "".join(POLICY.format(name=mix.key, mix=mix.key, limit=mix.limit, reserve=reserve(mix)) for mix in map(Mix, MIXES))


# By the name of the row: the reservation of a mix, and how many bytes of a prompt count as a token.
RESERVES = {
    "Tollgate, `reserve: 0`": (lambda mix: 0, 4),
    "Tollgate, the mean as `reserve`": (lambda mix: mix.mean, 4),
    "Tollgate, `worst`": (lambda mix: "{worst: {default_output: 4096}}", 4),
    "Tollgate, `worst` with `bytes_per_token: 1`": (lambda mix: "{worst: {default_output: 4096}}", 1),
    "Tollgate, `learn: 95%`": (lambda mix: f"{{learn: 95%, by: llm:model, min: 10, max: {mix.worst}, default: {mix.mean}}}", 4),
}
# By the name of the row: the environment.
LITELLMS = {
    "LiteLLM 1.108.7 `tpm_limit`": {},
    "LiteLLM 1.108.7 without its reservation": {"LITELLM_TPM_TOKEN_RESERVATION_ENABLED": "false"},
}


def tollgates(folder, upstream, redis, setting):
    reserve, size = setting
    ports, processes = [free_port(), free_port()], []
    for port in ports:
        text = TOLLGATE.format(bytes=size, port=port, upstream=upstream.port, redis=redis, policies=policies(reserve))
        processes.append(subprocess.Popen([rig.program(), "run", "-c", folder.write(f"{port}.yaml", text)],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        listening(port)
    return processes, Programs(ports, lambda mix, name: {"X-Mix": mix.key, "X-User": name})


def litellms(folder, upstream, redis, environment):
    program = subprocess.run([rig.ROOT / "scripts/pypi-server", "litellm"], check=True, capture_output=True, text=True).stdout.strip()
    folder.write("keys.py", LITELLM_KEYS)
    file = folder.write("litellm.yaml", LITELLM.format(upstream=upstream.port, redis=redis))
    ports, processes = [free_port(), free_port()], []
    for port in ports:
        processes.append(subprocess.Popen([program, "--config", file, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                          env={**os.environ, "NO_DOCS": "True", "LITELLM_RATE_LIMIT_WINDOW_SIZE": "3600", **environment}))
    for port in ports:
        listening(port)
    return processes, Programs(ports, lambda mix, name: {"Authorization": f"Bearer sk-{mix.limit}-{name}"})


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--only", help="the rows whose names have this part")
    arguments = parser.parse_args()
    upstream = Upstream()
    await upstream.start()
    with tempfile.TemporaryDirectory() as made:
        folder, redis = rig.Folder(made), free_port()
        server = subprocess.Popen(["redis-server", "--port", str(redis), "--save", "", "--dir", made], stdout=subprocess.DEVNULL)
        rig.wait_for(redis)
        rows = {name: lambda setting=setting: tollgates(folder, upstream, redis, setting) for name, setting in RESERVES.items()}
        rows |= {name: lambda more=more: litellms(folder, upstream, redis, more) for name, more in LITELLMS.items()}
        rows["model: Kuadrant, checks before, counts after"] = lambda: ([], Kuadrant(upstream))
        rows["model: two counters that meet each second"] = lambda: ([], ChargeAfter(upstream))
        print("Means: " + ", ".join(f"{mix.name} {mix.mean} tokens, at most {mix.worst}" for mix in map(Mix, MIXES)) + ".")
        count, found = itertools.count(), {}
        try:
            for name, start in rows.items():
                if not arguments.only or arguments.only in name:
                    processes, system = start()
                    try:
                        # What a process does at its first calls is not measured. `learn` needs 50 of them in each gateway.
                        for mix in map(Mix, MIXES):
                            ask, calls = system.begin(mix, "warm"), mix.calls("warm")
                            for _ in range(16):
                                await asyncio.gather(*[ask(number, next(calls)) for number in range(8)])
                        found[name] = await measure(name, system, arguments, upstream, count)
                    finally:
                        for process in processes:
                            process.kill()
                            process.wait()
        finally:
            server.kill()
            server.wait()
    print_table("Over the limit, by the mix and the number of callers", over, found, arguments.callers)
    print_table("Spent at the first false refusal", false_at, found, arguments.callers)
    print_table("Unspent in the end", unspent, found, arguments.callers)


if __name__ == "__main__":
    asyncio.run(main())
