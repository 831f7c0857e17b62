#!/usr/bin/env python3
"""Many callers spend one small budget of tokens: how much beyond it is spent, and how early is a call refused without need?

    cargo build --release && python3 benches/budgets.py [--rounds 12] [--callers 4 16 64] [--only NAME] [--mix NAME]
    python3 benches/budgets_picture.py

A mix is a file of benches/mixes: calls of a model with their tokens and their time. A budget is 200 times the mean of its mix. Callers
take the calls in turn; one that is refused sends the same call again after 100 ms. A round ends when nothing has run for 2 s. The
upstream names the tokens of a call as OpenAI does, and counts them by itself. Rounds with few callers are played together, each with
its own budget, as long as they have at most 64 callers in all.

- `over` is what the upstream has counted beyond the limit, as a share of the limit.
- `false at` is what the calls that had ended had cost at the first false refusal, as a share of the limit. A refusal is false if the
  limit had room for all calls admitted so far, whether they had ended or still ran, and for the refused one. Each counts with what
  it really costs. A call counts as admitted from the moment at which it is sent.
- `unspent` is what is left of the limit in the end.

Each is the median of the rounds, and has the worst round in brackets. The error output has each round, and the rounds of a row are
kept in target/budgets.json until they are measured again. Tollgate runs as two gateways on one Redis, LiteLLM as two processes on
one Redis with `tpm_limit` of a key and a window of an hour. The rows that begin with `model:` are no programs: they are the rules
below, `Kuadrant` and `ChargeAfter`, in this process. benches/budgets_calculated.py has the same numbers without any program.

Needs redis-server; LiteLLM comes from the Python package index.
"""

import argparse
import asyncio
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import rig
from budget_calls import AGAIN, IDLE, MIXES, Mix, Upstream, body_of
from rig import free_port
from slots import listening

KEPT = rig.TARGET / "budgets.json"
# The most callers of all rounds that are played together.
MOST_CALLERS = 64
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
            return await post(self.ports[number % len(self.ports)], self.fields(mix, name), body_of(call, mix, name))
        return ask


class Kuadrant:
    """A model: one counter for all gateways. A call passes while the counter is below the limit, and counts when it has ended."""

    def __init__(self, upstream):
        self.upstream = upstream

    def begin(self, mix, name):
        spent = 0

        async def ask(_number, call):
            nonlocal spent
            # The way to the counter and back.
            await asyncio.sleep(0.001)
            if spent >= mix.limit:
                return 429
            status = await post(self.upstream.port, {}, body_of(call, mix, name))
            spent += call.tokens
            return status
        return ask


class ChargeAfter:
    """A model: as `Kuadrant`, but each of two gateways has a counter, and they tell each other once a second what they have counted."""

    def __init__(self, upstream):
        self.upstream = upstream

    def begin(self, mix, name):
        known, new, told = 0, [0, 0], time.monotonic()

        async def ask(number, call):
            nonlocal known, told
            gateway = number % 2
            if time.monotonic() - told >= 1:
                known, new[:], told = known + sum(new), [0, 0], time.monotonic()
            if known + new[gateway] >= mix.limit:
                return 429
            status = await post(self.upstream.port, {}, body_of(call, mix, name))
            new[gateway] += call.tokens
            return status
        return ask


class Round:
    """What the callers saw: calls that were admitted, and refusals."""

    def __init__(self, mix, callers, number, counts):
        self.mix, self.callers, self.calls, self.counts = mix, callers, mix.calls(number), counts
        # (sent, ended, tokens), and (refused, tokens).
        self.admitted, self.refused = [], []

    async def play(self, ask):
        await asyncio.gather(*[self.caller(number, ask) for number in range(self.callers)])
        return self

    async def caller(self, number, ask):
        call, errors = next(self.calls), 0
        while self.counts.idle() < IDLE:
            sent = time.monotonic()
            status = await ask(number, call)
            now, tokens = time.monotonic(), call.tokens
            if status == 200:
                self.admitted.append((sent, now, tokens))
                self.counts.active = now
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
    """Yields the mix and the number of callers, with `over`, `false at` and `unspent` of the rounds."""

    async def one(mix, callers, number):
        own, begun = f"{next(count)}", time.monotonic()
        played = await Round(mix, callers, number, upstream.counts[own]).play(system.begin(mix, own))
        counted = upstream.counts[own].tokens
        if counted != played.over() + mix.limit:
            sys.exit(f"{name}, {mix.name}: the upstream counted {counted}, the callers {played.over() + mix.limit}")
        at = played.false_at()
        at = None if at is None else at / mix.limit
        over, left = max(0, played.over()) / mix.limit, max(0, -played.over()) / mix.limit
        print(f"# {name}, {mix.name}, {callers}: {len(played.admitted)} admitted, {len(played.refused)} refused, "
              f"{time.monotonic() - begun:.1f} s, over {percent(over)}, false at {percent(at)}, unspent {percent(left)}",
              file=sys.stderr, flush=True)
        return over, at, left

    for mix in map(Mix, arguments.mix):
        for callers in arguments.callers:
            together = max(1, MOST_CALLERS // callers)
            rounds = []
            for first in range(0, arguments.rounds, together):
                numbers = range(first, min(first + together, arguments.rounds))
                rounds += await asyncio.gather(*[one(mix, callers, number) for number in numbers])
            yield f"{mix.name}, {callers}", rounds


def over(rounds):
    shares = [share for share, _, _ in rounds]
    return f"{percent(statistics.median(shares))} ({percent(max(shares))})"


def false_at(rounds):
    # A round without a false refusal is above all others.
    shares = sorted((at for _, at, _ in rounds), key=lambda at: (at is None, at or 0))
    return f"{percent(shares[len(shares) // 2])} ({percent(shares[0])})"


def unspent(rounds):
    shares = [left for _, _, left in rounds]
    return f"{percent(statistics.median(shares))} ({percent(max(shares))})"


def print_table(title, cell, kept):
    measured = {column for row in kept.values() for column in row["rounds"]}
    columns = sorted(measured, key=lambda column: (list(MIXES).index(column.split(", ")[0]), int(column.split(", ")[1])))
    print(f"\n{title}:\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, row in kept.items():
        print(f"| {name} | {' | '.join(cell(row['rounds'][column]) if column in row['rounds'] else '' for column in columns)} |")


def policies(reserve):
    """`reserve` makes the reservation of a mix."""
    return "".join(POLICY.format(name=mix.key, mix=mix.key, limit=mix.limit, reserve=reserve(mix)) for mix in map(Mix, MIXES))


def learned(quantile, mix):
    return f"{{learn: {quantile}, by: llm:model, min: 10, max: {mix.worst}, default: {mix.mean}}}"


# By the name of the row: the reservation of a mix, and how many bytes of a prompt count as a token.
RESERVES = {
    "Tollgate, `reserve: 0`": (lambda mix: 0, 4),
    "Tollgate, the mean as `reserve`": (lambda mix: mix.mean, 4),
    "Tollgate, `worst`": (lambda mix: "{worst: {default_output: 4096}}", 4),
    "Tollgate, `worst` with `bytes_per_token: 1`": (lambda mix: "{worst: {default_output: 4096}}", 1),
    "Tollgate, `learn: 95%`": (lambda mix: learned("95%", mix), 4),
    "Tollgate, `learn: 90%`": (lambda mix: learned("90%", mix), 4),
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
    return processes, Programs(ports, lambda mix, name: {"X-Mix": mix.key, "X-User": name})


def litellms(folder, upstream, redis, environment):
    program = subprocess.run([rig.ROOT / "scripts/pypi-server", "litellm"], check=True, capture_output=True, text=True).stdout.strip()
    folder.write("keys.py", LITELLM_KEYS)
    file = folder.write("litellm.yaml", LITELLM.format(upstream=upstream.port, redis=redis))
    ports, processes = [free_port(), free_port()], []
    for port in ports:
        processes.append(subprocess.Popen([program, "--config", file, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                          env={**os.environ, "NO_DOCS": "True", "LITELLM_RATE_LIMIT_WINDOW_SIZE": "3600", **environment}))
    return processes, Programs(ports, lambda mix, name: {"Authorization": f"Bearer sk-{mix.limit}-{name}"})


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--callers", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--mix", nargs="+", choices=MIXES, default=list(MIXES))
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
        kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
        count = itertools.count()
        try:
            for name, start in rows.items():
                if not arguments.only or arguments.only in name:
                    processes, system = start()
                    try:
                        # LiteLLM needs more than a minute beside builds.
                        for port in getattr(system, "ports", []):
                            listening(port, minutes=5)
                        # What a process does at its first calls is not measured. `learn` needs 50 of them in each gateway.
                        for mix in map(Mix, MIXES):
                            ask, calls = system.begin(mix, "warm"), mix.calls(arguments.rounds)
                            for _ in range(16):
                                await asyncio.gather(*[ask(number, next(calls)) for number in range(8)])
                        async for column, rounds in measure(name, system, arguments, upstream, count):
                            row = kept.setdefault(name, {"rounds": {}})
                            row["date"], row["rounds"][column] = f"{datetime.date.today()}", rounds
                            kept = {name: kept[name] for name in rows if name in kept}
                            KEPT.write_text(json.dumps(kept), encoding="utf-8")
                    finally:
                        for process in processes:
                            process.kill()
                            process.wait()
        finally:
            server.kill()
            server.wait()
    print_table("Over the limit, by the mix and the number of callers", over, kept)
    print_table("Spent at the first false refusal", false_at, kept)
    print_table("Unspent in the end", unspent, kept)


if __name__ == "__main__":
    asyncio.run(main())
