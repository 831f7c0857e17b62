#!/usr/bin/env python3
"""Runs the benchmarks one after the other, in one run on one machine, and writes their tables into benches/results.md.

    python3 benches/all.py [NAME...] [--list]

Builds everything first, so that nothing compiles while something is measured: about half an hour for both, on 2 cores. The
output of each benchmark goes to target/measured/NAME.md. What `shortened` keeps of it replaces the text between `<!-- NAME -->`
and `<!-- /NAME -->` in benches/results.md, below the command that printed it. The rows that have a budget are the summary of
docs/performance.md. With names, only those are run, and the summary stays. Installs the programs that the benchmarks need, as
scripts/need does.
"""

import argparse
import datetime
import pathlib
import platform
import re
import subprocess
import sys
import time

import rig
from rig import ROOT

PAGE = ROOT / "benches/results.md"
SUMMARY = ROOT / "docs/performance.md"
MEASURED = rig.TARGET / "measured"
# By the name of its section in benches/results.md, in the order in which they run.
BENCHMARKS = {
    "proxy": "python3 benches/proxy.py --rounds 16",
    "tls": "python3 benches/tls.py --rounds 24 --seconds 1",
    "decision": "python3 benches/decision.py --rounds 12 --seconds 1",
    "envoy": "python3 benches/envoy.py --rounds 6 --seconds 1",
    "redis": "python3 benches/redis.py --rounds 12 --seconds 1 --json target/redis.json",
    "store": "cargo bench --locked --bench store -- --rounds 12 --seconds 0.25 --json target/store.json",
    "allocations": "cargo bench --locked --bench allocations",
    "algorithms": "python3 benches/algorithms.py --rounds 12 --seconds 1",
    "rules": "python3 benches/rules.py --rounds 12 --seconds 1",
    "routes": "python3 benches/routes.py --rounds 10 --seconds 1",
    "lists": "python3 benches/lists.py --rounds 5 --seconds 4",
    "tokens": "python3 benches/tokens.py --rounds 5 --seconds 1",
    "access-log": "python3 benches/log_cost.py --rounds 5 --seconds 1",
    "records": "python3 benches/records.py --rounds 12",
    "traces": "python3 benches/trace_cost.py --rounds 5 --seconds 1",
    "event-streams": "python3 benches/event_streams.py --rounds 12",
    "memory": "python3 benches/memory.py",
    "buckets": "python3 benches/buckets.py",
    "keys": "python3 benches/keys.py --keys 200000",
    "cluster": "python3 benches/cluster.py --rounds 12 --seconds 1",
    "slow": "python3 benches/slow.py",
    "postgres": "cargo bench --locked --bench postgres -- --rounds 12 --seconds 1",
}
PROGRAMS = ["cmake", "nginx", "nghttp", "openssl", "wrk", "redis-server", "/usr/lib/nginx/modules/ngx_http_lua_module.so",
            "/usr/share/lua/5.1/nginx/redis.lua", "/usr/lib/postgresql"]


# Columns that benches/results.md leaves out, in every table.
OMITTED = {"requests/s", "middle half", "the upstream's", "compared with", "its CPU", "lines dropped", "dropped", "ns per decision",
           "failed", "opened in", "worst", "passed: median ms", "refused while they come: median ms", "refused: median ms",
           "at the upstream: median ms", "elsewhere while they come: median ms", "elsewhere: median ms", "store ÷ function"}
# Rows that it leaves out, by the benchmark.
OMITTED_ROWS = {
    "algorithms": r".*, memory \|",
    "envoy": r".* − ",
    "lists": r" \| ratio|[^|]* \| 10 \|",
    "postgres": r"async|[^|]* \| [^|]* \| 1 \|",
    "redis": r"Tollgate, (no rules|memory), keys",
    "slow": r"none|stalled bodies|cut",
    "traces": r"built with,|no request traced \|",
}
# Benchmarks of which it has no table: the summary and the comparison of the stores show them.
SUMMARY_ALONE = {"allocations", "decision", "keys", "routes", "store"}
# Benchmarks whose rows with a budget it keeps beside the others.
WHOLE = {"algorithms", "event-streams", "lists", "records", "rules"}


def build():
    for benchmark in ("store", "allocations", "postgres"):
        subprocess.run(["cargo", "bench", "--locked", "--bench", benchmark, "--no-run"], cwd=ROOT, check=True)
    for features in (["--features", "bench-mimalloc"], []):
        rig.cargo("--example", "bare", *features)
    rig.cargo("--bin", "tollgate")


def run(name, command):
    """Returns what the benchmark prints."""
    print(f"== {name}: {command}", file=sys.stderr)
    begin = time.monotonic()
    done = subprocess.run(command.split(), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}: ended with {done.returncode}\n{done.stdout}")
    print(f"   {time.monotonic() - begin:.0f} s", file=sys.stderr)
    (MEASURED / f"{name}.md").write_text(done.stdout, encoding="utf-8")
    return done.stdout.strip()


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text):
    """The text in parts: tables, as lists of rows of cells, and what is between them, as lists of lines."""
    parts = []
    for line in text.splitlines():
        row = line.startswith("|")
        if not parts or parts[-1][0] != row:
            parts.append((row, []))
        parts[-1][1].append(cells_of(line) if row else line)
    return parts


def shortened(name, text):
    """What benches/results.md keeps. Rows that have a budget are in the summary already, unless the benchmark prints no others."""
    parts = tables(text)
    if sum(row for row, _ in parts) > 1 and name not in WHOLE:
        parts = [(row, lines) for row, lines in parts if not row or lines[0][-1] != "budget"]
    kept = []
    for row, lines in parts:
        if not row:
            kept += lines
            continue
        columns, omitted = [], False
        for place, head in enumerate(lines[0]):
            # `p99` and `worst` belong to the column before them.
            omitted = head in OMITTED or (omitted and head in ("p99", "worst"))
            if not omitted:
                columns.append(place)
        rows = [cells for cells in lines if not re.match(OMITTED_ROWS.get(name, "$^"), " | ".join(cells))]
        if len(rows) < 3 and name not in WHOLE:
            continue
        kept += ["| " + " | ".join(cells[place] for place in columns) + " |" if cells[0] != "---"
                 else "|" + "---|" * len(columns) for cells in rows]
    text = "\n".join(kept).replace(", 64 keep-alive connections", "")
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def rows_with_budget(name, text):
    """The rows of the tables whose last column is a budget: what was measured, the number, the budget."""
    rows, columns = [], []
    for line in text.splitlines():
        cells = cells_of(line)
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
        elif columns[-1] == "budget" and not line.startswith("|---") and cells[-1]:
            # `ratio` where there is such a column, else the one before the budget.
            place = columns.index("ratio") if "ratio" in columns else len(cells) - 2
            rows.append(f"| {cells[0]} | {cells[place]} | {cells[-1]} | [{name}](../benches/results.md#{HEADINGS[name]}) |")
    return rows


def comparison(printed):
    """One hot key and 64 callers: what the store benchmark and the count of allocations say of each implementation."""
    speeds = re.findall(r"^\| ([^|]+?) \| 64 \| (\d+) \| \d+ \| ([\d.]+) \|.*\| (\d+ %) \|$", printed["store"].split("| a key for")[0], re.M)
    allocations = dict(re.findall(r"^\| ([^|]+?) \| 64 \| ([\d.]+) \|", printed["allocations"], re.M))
    over = dict(re.findall(r"^\| ([^|]+?) \| \d+ \| \d+ \| ([+-][\d.]+ %) \|", printed["store"], re.M))
    rows = [f"| {name} | {ns} | {calls} | {allocations[name]} | {failed} | {over[name]} |" for name, ns, calls, failed in speeds]
    return "\n".join(["| | ns per decision | Redis commands per decision | allocations per decision | failed | over-grant |",
                      "|---|---|---|---|---|---|", *rows])


HEADINGS = {
    "proxy": "a-proxied-request", "tls": "tls-and-http2", "decision": "a-decision-for-another-proxy",
    "envoy": "a-decision-for-another-proxy", "redis": "a-limit-in-redis", "store": "the-store-alone", "algorithms": "other-algorithms",
    "rules": "a-long-file", "routes": "a-long-file", "event-streams": "a-stream-of-a-language-model",
    "memory": "a-bucket-of-each-algorithm", "cluster": "a-redis-cluster", "postgres": "postgresql",
}


def replace(page, name, text):
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        sys.exit(f"the page must have one `{begin}` and one `{end}`")
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)


def head():
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return (f"{datetime.date.today()}, commit {commit.stdout.strip() or 'unknown'}, {rig.machine()}, "
            f"Linux {platform.release().split('-')[0]}. A number is met that is not above its budget; `≥` marks the others.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        for name, command in BENCHMARKS.items():
            print(f"{name:<12} {command}")
        return
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; --list names them")
    subprocess.run([ROOT / "scripts/need", *PROGRAMS], check=True)
    MEASURED.mkdir(parents=True, exist_ok=True)
    build()
    page, summary, all_printed = PAGE.read_text(encoding="utf-8"), [], {}
    for name in arguments.names or BENCHMARKS:
        printed = run(name, BENCHMARKS[name])
        if name not in SUMMARY_ALONE:
            page = replace(page, name, f"\n`{BENCHMARKS[name]}`\n\n{shortened(name, printed)}\n")
        all_printed[name] = printed
        summary += rows_with_budget(name, printed)
    if {"store", "allocations"} <= set(all_printed):
        page = replace(page, "comparison", "\n" + comparison(all_printed) + "\n")
    if not arguments.names:
        table = ["| | measured | budget | section |", "|---|---|---|---|", *summary]
        summary_page = replace(SUMMARY.read_text(encoding="utf-8"), "summary", "\n" + head() + "\n\n" + "\n".join(table) + "\n")
        SUMMARY.write_text(summary_page, encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")
    if not arguments.names:
        subprocess.run([sys.executable, "benches/picture.py", "target/store.json", "target/redis.json"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
