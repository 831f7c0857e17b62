#!/usr/bin/env python3
"""Draws docs/performance.svg from what the benchmarks have measured.

    cargo bench --bench store -- --json target/store.json
    python3 benches/redis.py --json target/redis.json
    python3 benches/picture.py target/store.json target/redis.json

The picture stands for itself: it has no script, a background of its own, and colours for light and dark.
"""

import argparse
import html
import json
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, MARGIN = 960, 706, 28
PLOT_TOP, PLOT_HEIGHT, PLOT_LEFT, PLOT_WIDTH = 88, 250, 46, 230
PANEL = (WIDTH - 2 * MARGIN + 24) / 2
BARS_TOP, BAR, STEP, BARS_LEFT = 440, 20, 32, 276
# How far lines of text stand apart.
LINE = 15

# Class, light, dark.
SERIES = {
    "Tollgate": ("tollgate", "#0b62d6", "#58a6ff"),
    "EVALSHA": ("evalsha", "#b35900", "#f0a04b"),
    "HMGET, HSET, EXPIRE": ("commands", "#1a7f4b", "#56d08b"),
    "WATCH, MULTI, EXEC": ("watch", "#8250df", "#c297ff"),
}
PLAIN = [("paper", "#ffffff", "#0d1117"), ("ink", "#1f2328", "#e6edf3"), ("soft", "#59636e", "#9198a1"),
         ("grid", "#d8dee4", "#2d333b"), ("other", "#a5adb6", "#6e7681")]
BARS = {
    "Tollgate, no rules": "Tollgate, no rules, hot",
    "one rule in memory": "Tollgate, memory, hot",
    "one rule in Redis, one hot key": "Tollgate, Redis, hot",
    "one rule in Redis, 10 000 keys": "Tollgate, Redis, keys",
    "nginx with EVALSHA from Lua, one hot key": "nginx and Lua, EVALSHA, hot",
    "nginx with EVALSHA from Lua, 10 000 keys": "nginx and Lua, EVALSHA, keys",
}


def style():
    def colours(place):
        lines = []
        for name, *shades in [*SERIES.values(), *PLAIN]:
            shade = shades[place]
            lines.append(f".{name} {{ fill: {shade}; }} .{name}-line {{ stroke: {shade}; }}")
        return "\n".join(lines)

    return f"""<style>
text {{ font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }}
.title {{ font-size: 15px; font-weight: 600; }} .strong {{ font-weight: 600; }}
polyline {{ fill: none; stroke-width: 2; stroke-linejoin: round; }} .thick {{ stroke-width: 3; }}
{colours(0)}
@media (prefers-color-scheme: dark) {{
{colours(1)}
}}
</style>"""


def text(x, y, words, names="ink", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{names}" text-anchor="{anchor}">{html.escape(words)}</text>'


def short(number):
    """A number in as many letters as a label has room for."""
    for unit, letter in ((1_000_000, " M"), (1000, " k")):
        if number >= unit:
            return f"{number / unit:.{0 if number >= 10 * unit or number % unit == 0 else 1}f}{letter}"
    return f"{number:.0f}"


def apart(places):
    """The same places in their order, moved down where they would be on one another."""
    moved = {}
    last = -math.inf
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        last = moved[name] = max(place, last + LINE)
    return moved


def lines(left, cells, keys, title):
    """Decisions per second by callers, both logarithmic."""
    callers = sorted({cell["callers"] for cell in cells})
    step = PLOT_WIDTH / (len(callers) - 1)
    across = {number: left + PLOT_LEFT + step * place for place, number in enumerate(callers)}

    # All that was measured, so that two panels have the same.
    rates = [math.log10(cell["decisions_per_second"]) for cell in cells]
    lowest, highest = math.floor(min(rates)), math.ceil(max(rates))

    def down(rate):
        return PLOT_TOP + PLOT_HEIGHT * (highest - math.log10(rate)) / (highest - lowest)

    right = left + PLOT_LEFT + PLOT_WIDTH
    drawn = [text(left, PLOT_TOP - 22, title, "ink strong")]
    for decade in range(lowest, highest + 1):
        y = down(10 ** decade)
        drawn.append(f'<path d="M{left + PLOT_LEFT} {y:.1f}H{right}" class="grid-line"/>')
        drawn.append(text(left + PLOT_LEFT - 8, y + 4, short(10 ** decade), "soft", "end"))
    for number, x in across.items():
        drawn.append(text(x, PLOT_TOP + PLOT_HEIGHT + 20, str(number), "soft", "middle"))
    drawn.append(text(left + PLOT_LEFT + PLOT_WIDTH / 2, PLOT_TOP + PLOT_HEIGHT + 38, "callers", "soft", "middle"))
    ends = {}
    # The first one is drawn last, above the others.
    for name, (colour, *_) in reversed(SERIES.items()):
        points = {cell["callers"]: cell["decisions_per_second"] for cell in cells
                  if (cell["keys"], cell["implementation"]) == (keys, name)}
        places = [(across[number], down(points[number])) for number in callers]
        thick = " thick" if name == "Tollgate" else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{path}" class="{colour}-line{thick}"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{colour}"/>' for x, y in places]
        ends[name] = (places[-1][1], points[callers[-1]])
    for name, y in apart({name: place for name, (place, _) in ends.items()}).items():
        strong = " strong" if name == "Tollgate" else ""
        drawn.append(text(right + 10, y + 4, f"{name}  {short(ends[name][1])}", SERIES[name][0] + strong))
    return drawn


def bars(rows):
    """CPU per request from end to end, that of Redis behind that of the proxy."""
    shown = {label: rows[name] for label, name in BARS.items() if name in rows}
    scale = (WIDTH - MARGIN - 60 - MARGIN - BARS_LEFT) / max(row["cpu_microseconds"] for row in shown.values())
    drawn = []
    for place, (label, row) in enumerate(shown.items()):
        x, y = MARGIN + BARS_LEFT, BARS_TOP + 28 + STEP * place
        whole, store = row["cpu_microseconds"] * scale, row["redis_microseconds"] * scale
        colour = "other" if label.startswith("nginx") else "tollgate"
        drawn.append(text(x - 10, y + 14, label, "ink", "end"))
        drawn.append(f'<rect x="{x}" y="{y}" width="{whole - store:.1f}" height="{BAR}" class="{colour}"/>')
        drawn.append(f'<rect x="{x + whole - store:.1f}" y="{y}" width="{store:.1f}" height="{BAR}" '
                     f'class="{colour}" opacity="0.45"/>')
        drawn.append(text(x + whole + 8, y + 14, f"{row['cpu_microseconds']:.0f} µs", "ink strong"))
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=pathlib.Path, help="what `cargo bench --bench store` has written")
    parser.add_argument("redis", type=pathlib.Path, help="what benches/redis.py has written")
    parser.add_argument("--to", type=pathlib.Path, default=ROOT / "docs/performance.svg")
    arguments = parser.parse_args()
    store = json.loads(arguments.store.read_text(encoding="utf-8"))
    redis = json.loads(arguments.redis.read_text(encoding="utf-8"))

    over = {each["implementation"]: each["percent"] for each in store["over_grants"]}
    wrong = [f"{name} grants {1 + percent / 100:.0f} times what a limit of 10/s allows to 64 callers"
             for name, percent in over.items() if percent > 100]
    foot = [f"{store['date']} and {redis['date']}" if store["date"] != redis["date"] else store["date"],
            f"{redis['machine']}, Redis {store['redis']}", "medians", "beside the lines: with 256 callers"]
    words = "Decisions per second of Tollgate and three other token buckets in Redis; CPU time per proxied request"
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{html.escape(words)}</title>",
        style(),
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="paper"/>',
        text(MARGIN, 38, "Decisions per second of the store alone, one client thread; logarithmic", "ink title"),
        *lines(MARGIN, store["cells"], "one hot key", "one hot key"),
        *lines(MARGIN + PANEL, store["cells"], "10 000 keys", "10 000 keys at random"),
        *(text(MARGIN, PLOT_TOP + PLOT_HEIGHT + 60 + LINE * place, note + ".", "soft")
          for place, note in enumerate(wrong)),
        text(MARGIN, BARS_TOP + 6, "CPU time per proxied request, Redis included (paler)", "ink title"),
        *bars(redis["rows"]),
        text(MARGIN, HEIGHT - 20, " · ".join(foot), "soft"),
        "</svg>",
    ]
    arguments.to.write_text("\n".join(drawn) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
