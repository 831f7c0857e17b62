"""Computes what requests cost, by itself: recompute.py TABLE. For each line of `model input output cached cache_write` on standard
input it prints the line of the table and the cost in 10^-9 USD, or `none`. Nothing is rounded but the cost, once."""

import csv
import sys
from fractions import Fraction

with open(sys.argv[1], newline="") as file:
    rows = []
    header = None
    for number, row in enumerate(csv.reader(file), 1):
        if header is None:
            header = row
        else:
            rows.append((number, dict(zip(header, row))))


def length(pattern, model):
    """How much of the model the pattern names, or None if it does not match. A whole name is longer than any beginning."""
    if pattern == "default":
        return -1
    if pattern.endswith("*"):
        return len(pattern) - 1 if model.startswith(pattern[:-1]) else None
    return len(model) + 1 if pattern == model else None


for line in sys.stdin:
    model, *tokens = line.split()
    sent, written, cached, stored = map(int, tokens)
    prompt = sent + cached + stored
    best = max((length(row["model"], model) for _, row in rows if length(row["model"], model) is not None), default=None)
    if best is None:
        print("none")
        continue
    tiers = [(int(row["above"] or 0), number, row) for number, row in rows if length(row["model"], model) == best]
    _, number, row = max(tier for tier in tiers if tier[0] <= prompt)
    price = lambda column: Fraction(row[column] or row["input"])
    dollars = sent * price("input") + written * price("output") + cached * price("cached") + stored * price("cache_write")
    cost = dollars / 10**6 * 10**9
    print(number, -(-cost.numerator // cost.denominator))
