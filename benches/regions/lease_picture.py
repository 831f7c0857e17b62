#!/usr/bin/env python3
"""Draws docs/regions.svg: what the size of a lease does, from what `python3 benches/regions --long --json FILE` has written.

    python3 benches/regions/lease_picture.py target/regions.json

Above: fixed windows. Below: token buckets. The picture stands for itself, as docs/performance.svg does.
"""

import argparse
import html
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benches"))
from picture import PLAIN, text  # noqa: E402 (found only through the line above)

WIDTH, HEIGHT, MARGIN = 960, 690, 28
LEFT, ACROSS, DOWN = 52, 230, 180
TOPS = (96, 404)
PANEL = (WIDTH - 2 * MARGIN) / 3
# Class, light and dark of each limit, by its place in its half of the picture.
COLOURS = [("one", "#0b62d6", "#58a6ff"), ("two", "#1a7f4b", "#56d08b"), ("three", "#b35900", "#f0a04b"), ("four", "#8250df", "#c297ff"),
           ("five", "#59636e", "#9198a1")]
# What a panel shows: the key of a cell, its title, and the marks of its axis; None: logarithmic.
WINDOWS = [("calls", "calls home per request at 0.9", None),
           ("first", "spent at the first refusal at 1.5", [0.7, 0.8, 0.9, 1.0]),
           ("stranded", "in purses at the end of a period at 0.9", [0.0, 0.05, 0.1, 0.15])]
BUCKETS = [("calls", "calls home per request at 0.9", None),
           ("far", "refused at 0.9, all in the far region", [0.0, 0.25, 0.5, 0.75, 1.0]),
           ("granted", "granted at 1.5", [0.6, 0.7, 0.8, 0.9, 1.0])]
DECADES = [0.0001, 0.001, 0.01, 0.1, 1.0]


def style():
    def colours(place):
        return "\n".join(f".{name} {{ fill: {(light, dark)[place]}; }} .{name}-line {{ stroke: {(light, dark)[place]}; }}"
                         for name, light, dark in COLOURS + PLAIN)

    return f"""<style>
text {{ font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }}
.title {{ font-size: 15px; font-weight: 600; }} .strong {{ font-weight: 600; }}
polyline {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
{colours(0)}
@media (prefers-color-scheme: dark) {{
{colours(1)}
}}
</style>"""


def panel(left, top, cells, key, title, marks):
    """One line for each limit and form; a value beyond the axis is at its end."""
    shares = sorted({cell["share"] for cell in cells})
    across = {share: left + LEFT + 10 + (ACROSS - 30) * place / (len(shares) - 1) for place, share in enumerate(shares)}
    scale = math.log10 if marks is None else float
    lowest, highest = scale((marks or DECADES)[0]), scale((marks or DECADES)[-1])

    def down(value):
        value = max((marks or DECADES)[0], 1.0 if value is None else value)
        return top + DOWN * (1 - min(1, (scale(value) - lowest) / (highest - lowest)))

    drawn = [text(left + LEFT - 30, top - 18, title, "ink strong")]
    for mark in marks or DECADES:
        drawn.append(f'<path d="M{left + LEFT:.1f} {down(mark):.1f}h{ACROSS - 10}" class="grid-line"/>')
        label = f"{mark:g}" if marks is None else f"{100 * mark:.0f} %"
        drawn.append(text(left + LEFT - 6, down(mark) + 4, label, "soft", "end"))
    if marks is None:
        # The budget.
        drawn.append(f'<path d="M{left + LEFT:.1f} {down(0.01):.1f}h{ACROSS - 10}" class="ink-line" stroke-dasharray="2 3"/>')
    drawn += [text(x, top + DOWN + 18, f"{100 * share:g}", "soft", "middle") for share, x in across.items()]
    for (name, *_), limit in zip(COLOURS, dict.fromkeys(cell["limit"] for cell in cells)):
        for form, dashes in (("first", ' stroke-dasharray="5 4"'), ("chosen", "")):
            places = [(across[cell["share"]], down(cell[key])) for cell in cells if (cell["limit"], cell["form"]) == (limit, form)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            drawn.append(f'<polyline points="{path}" class="{name}-line"{dashes}/>')
            if form == "chosen":
                drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{name}"/>' for x, y in places]
    return drawn


def legend(cells, top):
    drawn = []
    for place, limit in enumerate(dict.fromkeys(cell["limit"] for cell in cells)):
        x = MARGIN + LEFT + 150 * place
        drawn.append(f'<circle cx="{x}" cy="{top - 4}" r="4" class="{COLOURS[place][0]}"/>')
        drawn.append(text(x + 10, top, limit))
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=pathlib.Path, help="what `python3 benches/regions --long --json` has written")
    figures = json.loads(parser.parse_args().figures.read_text(encoding="utf-8"))
    drawn = []
    for top, title, name, panels in ((TOPS[0], "Fixed windows", "windows", WINDOWS), (TOPS[1], "Token buckets", "buckets", BUCKETS)):
        cells = figures[name]
        drawn.append(text(MARGIN, top - 48, f"{title}, by the largest lease in % of the limit", "ink title"))
        for place, (key, words, marks) in enumerate(panels):
            drawn += panel(MARGIN + PANEL * place, top, cells, key, words, marks)
        drawn += legend(cells, top + DOWN + 46)
    foot = (f"{figures['date']} · simulated · 0.9 and 1.5: the demand, of the limit or the rate · three regions, 1, 80 and 250 ms from home · "
            "dashed: a first draft of the protocol")
    drawn.append(text(MARGIN, HEIGHT - 18, foot, "soft"))
    words = "Leases of several regions: calls home per request, what is spent at the first refusal, and what lies in purses"
    picture = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
               f"<title>{html.escape(words)}</title>", style(),
               f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="paper"/>', *drawn, "</svg>"]
    (ROOT / "docs/regions.svg").write_text("\n".join(picture) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
