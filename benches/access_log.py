#!/usr/bin/env python3
"""Writes an access log to standard output, to replay: a day of requests of clients of very different size.

python3 benches/access_log.py --format tollgate --lines 1000000 > day.jsonl
"""

import argparse
import datetime
import hashlib
import json
import random

DAY = 86_400
START = 1_795_219_200  # 2026-11-21T00:00:00Z


def bucket(client):
    return hashlib.sha256(f"bucket {client}".encode()).hexdigest()[:16]


def tollgate(second, client, number):
    time = datetime.datetime.fromtimestamp(second, datetime.timezone.utc)
    return json.dumps({
        "time": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "request_id": f"{number:032x}", "kind": "allowed", "route": "default", "method": "GET", "code": 200,
        "origin": "upstream", "duration_us": 2310, "decision_us": 41, "upstream_us": 2201, "request_bytes": 0,
        "response_bytes": 512, "policy": "default", "rule": "anonymous", "cost": 1, "remaining": 3.25,
        "bucket": bucket(client), "source": "store",
    }, separators=(",", ":"))


def address(client):
    return f"10.{client >> 16 & 255}.{client >> 8 & 255}.{client & 255}"


def combined(second, client, number):
    time = datetime.datetime.fromtimestamp(int(second), datetime.timezone.utc).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return (f'{address(client)} - - [{time}] "GET /v1/items/{number}?page=2 HTTP/1.1" 200 512 '
            f'"https://www.example.com/" "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"')


def fields(second, client, number):
    return json.dumps({"ts": round(second, 6), "client": address(client), "req": {"method": "GET", "uri": f"/v1/{number}"},
                       "user": {"id": f"user-{client}", "plan": "free" if client % 3 else "gold"}, "status": 200})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=["tollgate", "combined", "json"], default="tollgate")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    write = {"tollgate": tollgate, "combined": combined, "json": fields}[arguments.format]
    for number in range(arguments.lines):
        second = START + DAY * (number + random.random()) / arguments.lines
        # A few clients send most.
        client = int(arguments.clients * random.random() ** 3)
        print(write(second, client, number))


if __name__ == "__main__":
    main()
