"""Heat maps of right answers, depth in the document by length, one panel a policy, as SVG. Needs numpy, no torch.

    python heatmap.py --cells CELLS --out long-context.svg final-8192.json final-16384.json ...
"""
import argparse
import json
import os

from cells import load_cell

PANELS = [("dense", "dense"), ("sketch 16 B", "key sketch, 16 B"), ("sketch 16 B, R4 with 4x", "key sketch, reuse of 4 with candidates"),
          ("Quest", "Quest P16"), ("LServe", "LServe P64/L16"), ("LServe, R4", "LServe, reuse of 4")]
CELL, LEFT, TOP, GAP, HEAD = 30, 74, 50, 26, 44


def shares(results, cells):
    """{policy: {(context, tenth): share of right answers}}; the budget with the larger share of the document where there are two."""
    out = {}
    for r in results:
        name, _, budget = r["policy"].partition(" @")
        if budget.isdigit():
            continue
        context = r["context"]
        if context not in cells:
            continue
        counts = {}
        for bit, depth in zip(r["bits"], cells[context]):
            right, asked = counts.get(min(9, int(depth * 10)), (0, 0))
            counts[min(9, int(depth * 10))] = (right + (bit == "1"), asked + 1)
        out.setdefault(name, {}).update({(context, t): right / asked for t, (right, asked) in counts.items()})
    return out


STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))


def color(share):
    """Fill, and text that reads on it: dark violet at 0.5 and below to yellow at 1, as src/workload/needle/score.cc draws it."""
    t = min(max((share - 0.5) * 2, 0.0), 1.0) * 4
    low = min(int(t), 3)
    red, green, blue = (round(a + (b - a) * (t - low)) for a, b in zip(STOPS[low], STOPS[low + 1]))
    return f"rgb({red},{green},{blue})", "#1c1c1c" if t > 2.2 else "#ffffff"


def legend(left, top):
    steps = [f'<rect x="{left + 8 * i}" y="{top}" width="8" height="12" fill="{color(0.5 + i / 38)[0]}"/>' for i in range(20)]
    return [*steps, f'<text x="{left}" y="{top + 24}" font-size="10">50 % right or less</text>'
            f'<text x="{left + 160}" y="{top + 24}" font-size="10" text-anchor="end">100 %</text>']


def panel(title, row, contexts, left, top):
    middle = top + len(contexts) * CELL / 2
    parts = [f'<text x="{left}" y="{top - 34}" font-weight="bold">{title}</text>',
             f'<text x="{left}" y="{top - 20}" font-size="10" fill="#555">depth of the fact, % of the document</text>',
             f'<text x="{left - 46}" y="{middle}" font-size="10" fill="#555" text-anchor="middle" '
             f'transform="rotate(-90 {left - 46} {middle})">tokens</text>']
    for i, context in enumerate(contexts):
        y = top + i * CELL
        parts.append(f'<text x="{left - 8}" y="{y + 19}" text-anchor="end">{context // 1024}k</text>')
        for tenth in range(10):
            share = row.get((context, tenth))
            if share is None:
                continue
            x = left + tenth * CELL
            fill, ink = color(share)
            parts.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}"/>'
                         f'<text x="{x + CELL / 2}" y="{y + 19}" text-anchor="middle" font-size="10" fill="{ink}">{round(share * 100)}</text>')
    parts += [f'<text x="{left + t * CELL + CELL / 2}" y="{top - 6}" text-anchor="middle" font-size="10">{t * 10}</text>' for t in range(10)]
    return parts


def picture(panels, contexts):
    """SVG of (title, {(context, tenth): share}) panels, two a row."""
    width, height = LEFT + 10 * CELL + GAP, TOP + len(contexts) * CELL + GAP
    parts = ['<text x="16" y="20">In each cell: per cent of the questions answered exactly right</text>', *legend(LEFT + width, 8)]
    for index, (title, row) in enumerate(panels):
        parts += panel(title, row, contexts, LEFT + index % 2 * width, HEAD + TOP + index // 2 * height)
    size = f'width="{2 * width}" height="{HEAD + (len(panels) + 1) // 2 * height}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("results", nargs="+")
    options = parser.parse_args()
    results = [r for path in options.results for r in json.load(open(path))]
    contexts = sorted({r["context"] for r in results})
    depths = {c: [q[2] for _, asked in load_cell(os.path.join(options.cells, f"{c}-final.npz")) for q in asked] for c in contexts}
    table = shares(results, depths)
    with open(options.out, "w") as file:
        file.write(picture([(title, table[name]) for name, title in PANELS if name in table], contexts))


if __name__ == "__main__":
    main()
