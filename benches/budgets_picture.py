#!/usr/bin/env python3
"""Draws benches/budgets.svg from target/budgets.json, which benches/budgets.py has written.

    python3 benches/budgets_picture.py

Above: what is spent beyond the limit, by the number of callers. Below: what is spent at the first false refusal. One column for each
mix, medians over rounds. The picture stands for itself, as docs/performance.svg does.
"""

import html
import json
import math
import statistics

import rig
from picture import PLAIN, text

MIXES = ["short chats", "long streams", "mixed"]
WIDTH, HEIGHT, MARGIN = 960, 690, 28
LEFT, ACROSS, DOWN = 50, 230, 190
TOPS = (86, 350)
PANEL = (WIDTH - 2 * MARGIN) / len(MIXES)
# By the row of the table: the class, the label, light, dark, and the dashes of the line.
SERIES = {
    "Tollgate, `worst`": ("worst", "Tollgate, worst", "#8250df", "#c297ff", ""),
    "Tollgate, `learn: 95%`": ("learn", "Tollgate, learn: 95%", "#0b62d6", "#58a6ff", ""),
    "Tollgate, the mean as `reserve`": ("mean", "Tollgate, the mean", "#1a7f4b", "#56d08b", ""),
    "Tollgate, `reserve: 0`": ("zero", "Tollgate, reserve: 0", "#59636e", "#9198a1", ""),
    "LiteLLM 1.108.7 `tpm_limit`": ("litellm", "LiteLLM", "#b35900", "#f0a04b", "7 4"),
    "LiteLLM 1.108.7 without its reservation": ("litellm-off", "LiteLLM without its reservation", "#b3261e", "#ff8a80", "7 4"),
    "model: Kuadrant, checks before, counts after": ("kuadrant", "model: Kuadrant", "#0a7d8c", "#4fd1e0", "2 4"),
    "model: two counters that meet each second": ("counters", "model: two counters", "#6b4f1d", "#cbb07a", "2 4"),
}


def style():
    def colours(place):
        shades = [(name, light, dark) for name, _, light, dark, _ in SERIES.values()] + PLAIN
        return "\n".join(f".{name} {{ fill: {(light, dark)[place]}; }} .{name}-line {{ stroke: {(light, dark)[place]}; }}"
                         for name, light, dark in shades)

    return f"""<style>
text {{ font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }}
.title {{ font-size: 15px; font-weight: 600; }} .strong {{ font-weight: 600; }}
polyline {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
{colours(0)}
@media (prefers-color-scheme: dark) {{
{colours(1)}
}}
</style>"""


def panel(left, top, curves, highest, marks):
    """`curves` has the share at each number of callers, by the row. `marks` are the lines of the grid with their labels."""
    callers = sorted({number for curve in curves.values() for number in curve})
    across = {number: left + LEFT + 10 + (ACROSS - 20) * place / max(1, len(callers) - 1) for place, number in enumerate(callers)}
    drawn = []
    for share, label in marks:
        y = top + DOWN * (1 - share / highest)
        drawn.append(f'<path d="M{left + LEFT:.1f} {y:.1f}h{ACROSS}" class="grid-line"/>')
        drawn.append(text(left + LEFT - 8, y + 4, label, "soft", "end"))
    drawn += [text(x, top + DOWN + 20, f"{number}", "soft", "middle") for number, x in across.items()]
    for row, curve in curves.items():
        name, _, _, _, dashes = SERIES[row]
        places = [(across[number], top + DOWN * (1 - curve[number] / highest)) for number in sorted(curve)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        drawn.append(f'<polyline points="{path}" class="{name}-line"{dashed}/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{name}"/>' for x, y in places]
    return drawn


def median_of(values):
    # As benches/budgets.py has it: a round without a false refusal is above all others.
    return sorted(values)[len(values) // 2]


def main():
    kept = json.loads((rig.TARGET / "budgets.json").read_text(encoding="utf-8"))
    never = 1.15

    def curves(mix, value):
        found = {}
        for row in SERIES:
            if row in kept:
                cells = {int(key.rsplit(", ", 1)[1]): rounds for key, rounds in kept[row]["rounds"].items()
                         if key.rsplit(", ", 1)[0] == mix}
                found[row] = {callers: value(rounds) for callers, rounds in cells.items()}
        return found

    overs = {mix: curves(mix, lambda rounds: statistics.median(over for over, _, _ in rounds)) for mix in MIXES}
    falses = {mix: curves(mix, lambda rounds: median_of([never if at is None else at for _, at, _ in rounds])) for mix in MIXES}
    most = max(share for mix in overs.values() for curve in mix.values() for share in curve.values())
    step = 0.5 if most > 1 else 0.2
    highest = step * max(1, math.ceil(most / step))
    dates = sorted({row["date"] for row in kept.values()})
    drawn = [text(MARGIN, 36, "Spent beyond the limit, by the number of callers", "ink title"),
             text(MARGIN, TOPS[1] - 30, "Spent at the first false refusal, by the number of callers", "ink title")]
    for place, mix in enumerate(MIXES):
        left = MARGIN + PANEL * place
        drawn.append(text(left + LEFT, TOPS[0] - 24, mix, "ink strong"))
        marks = [(step * count, f"{100 * step * count:.0f} %") for count in range(round(highest / step) + 1)]
        drawn += panel(left, TOPS[0], overs[mix], highest, marks)
        marks = [(share, f"{100 * share:.0f} %") for share in (0, 0.25, 0.5, 0.75, 1)] + [(never, "never")]
        drawn += panel(left, TOPS[1], falses[mix], never, marks)
    for place, (name, label, _, _, dashes) in enumerate(series for row, series in SERIES.items() if row in kept):
        x, y = MARGIN + 226 * (place % 4), HEIGHT - 84 + 22 * (place // 4)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        drawn.append(f'<polyline points="{x},{y - 4} {x + 28},{y - 4}" class="{name}-line"{dashed}/>')
        drawn.append(text(x + 36, y, label))
    rounds = min(len(rounds) for row in kept.values() for rounds in row["rounds"].values())
    drawn.append(text(MARGIN, HEIGHT - 22, f"{' to '.join(sorted({dates[0], dates[-1]}))} · a limit of 200 mean calls · medians of "
                                           f"{rounds} rounds · two gateways, one Redis", "soft"))
    words = "What parallel callers spend beyond a budget of tokens, and what is spent at the first false refusal"
    picture = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
               f"<title>{html.escape(words)}</title>", style(),
               f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="paper"/>', *drawn, "</svg>"]
    (rig.ROOT / "benches/budgets.svg").write_text("\n".join(picture) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
