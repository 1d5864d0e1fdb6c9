"""Heat maps of right answers, depth in the document by length, one panel a policy, as SVG. Needs numpy, no torch.

    python heatmap.py --cells CELLS --out long-context.svg final-8192.json final-16384.json ...
"""
import argparse
import json
import os

from cells import load_cell

PANELS = [("dense", "dense"), ("sketch 16 B", "key sketch, 16 B"), ("sketch 16 B, R4 with 4x", "key sketch, reuse of 4 with candidates"),
          ("Quest", "Quest P16"), ("LServe", "LServe P64/L16"), ("LServe, R4", "LServe, reuse of 4")]
CELL, LEFT, TOP, GAP = 30, 74, 44, 26


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


def color(share):
    """White at 0.5 and below to green at 1."""
    part = max(0.0, (share - 0.5) * 2)
    return f"rgb({int(250 - 205 * part)},{int(245 - 75 * part)},{int(235 - 135 * part)})"


def panel(title, row, contexts, left, top):
    parts = [f'<text x="{left}" y="{top - 22}" font-weight="bold">{title}</text>']
    for i, context in enumerate(contexts):
        y = top + i * CELL
        parts.append(f'<text x="{left - 8}" y="{y + 19}" text-anchor="end">{context // 1024}k</text>')
        for tenth in range(10):
            share = row.get((context, tenth))
            if share is None:
                continue
            x = left + tenth * CELL
            parts.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{color(share)}"/>'
                         f'<text x="{x + CELL / 2}" y="{y + 19}" text-anchor="middle" font-size="10">{round(share * 100)}</text>')
    parts += [f'<text x="{left + t * CELL + CELL / 2}" y="{top - 6}" text-anchor="middle" font-size="10">{t * 10}</text>' for t in range(10)]
    return parts


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
    width, height = LEFT + 10 * CELL + GAP, TOP + len(contexts) * CELL + GAP
    panels = [(title, table[name]) for name, title in PANELS if name in table]
    parts = []
    for index, (title, row) in enumerate(panels):
        parts += panel(title, row, contexts, LEFT + index % 2 * width, TOP + index // 2 * height)
    size = f'width="{2 * width}" height="{(len(panels) + 1) // 2 * height}"'
    with open(options.out, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n'
                   '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
