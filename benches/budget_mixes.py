#!/usr/bin/env python3
"""Drew the files of benches/mixes once, so that everybody plays the same calls.

    python3 benches/budget_mixes.py AzureLLMInferenceTrace_conv.csv AzureLLMInferenceTrace_code.csv

The arguments are the two files of the Azure LLM inference trace 2023 (https://github.com/Azure/AzurePublicDataset, CC-BY; Patel et al.,
"Splitwise", ISCA 2024): the tokens of real prompts and answers. Conversations and code are drawn from 100 quantiles of each, prompts and
answers independently of each other: in the trace their correlation is -0.11 and 0.00. The other mixes are log-normal, as we chose them.
"""

import csv
import pathlib
import random
import sys

from budget_calls import FOLDER, MIXES

CALLS, SEED = 2000, 20
# The trace has no times. A hundredth of what models take: a moment for the prompt, and then one for each token.
FIRST, EACH = 30, 0.3
# The share of the calls that are streamed.
STREAMED = {"short chats": 0.5, "long streams": 1.0, "mixed": 0.7, "conversations": 0.7, "code": 0.5}


def quantiles(numbers):
    ordered = sorted(numbers)
    return [ordered[round(share / 100 * (len(ordered) - 1))] for share in range(101)]


def between(table, draw):
    place = draw.random() * 100
    low = int(place)
    return table[low] + (place - low) * (table[min(low + 1, 100)] - table[low])


def of_trace(path):
    with open(path, encoding="utf-8") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    tables = [quantiles(column) for column in zip(*rows)]
    return lambda draw: [between(table, draw) for table in tables]


def log_normal(prompts, answers):
    """Each is the median and the spread: sigma of the logarithm."""
    return lambda draw: [median * draw.lognormvariate(0, spread) for median, spread in (prompts, answers)]


def main():
    conversations, code = sys.argv[1:]
    shapes = {"short chats": log_normal((150, 0.5), (120, 0.6)), "long streams": log_normal((600, 0.5), (1200, 0.4)),
              # One answer in twenty is ten times as long as the median.
              "mixed": log_normal((200, 0.8), (150, 1.4)),
              "conversations": of_trace(conversations), "code": of_trace(code)}
    for name, shape in shapes.items():
        draw = random.Random(f"{name} {SEED}")
        lines = ["input,output,milliseconds,streamed"]
        for _ in range(CALLS):
            prompt, written = [max(1, round(tokens)) for tokens in shape(draw)]
            written = min(written, MIXES[name])
            lines.append(f"{prompt},{written},{round(FIRST + EACH * written)},{int(draw.random() < STREAMED[name])}")
        path = pathlib.Path(FOLDER, name.replace(" ", "-") + ".csv")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
