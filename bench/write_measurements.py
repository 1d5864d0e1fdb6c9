#!/usr/bin/env python3
"""Turns the JSON of `fovea bench` into a page of docs/measurements. Called by hand after a run on a quiet machine.

Usage: write_measurements.py --title TITLE --note TEXT --out docs/measurements/cpu.md FILE.json...
Each file is one run: its machine is named above its rows. Nothing is rounded away that the run did not measure: a share
is value / limit (limit / value for times), a ratio is how many times better than the peer.
"""
import argparse
import datetime
import json

LOWER_IS_BETTER = {"us", "ms", "s", "%"}


def number(value):
    if value is None:
        return ""
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.1e}"
    return f"{value:.4g}"


def row_cells(row):
    ratio = ""
    if row["peer_value"]:
        lower = row["unit"] in LOWER_IS_BETTER
        ratio = f"{row['peer_value'] / row['value'] if lower else row['value'] / row['peer_value']:.2f}x"
    share = "" if row["share"] is None else f"{100 * row['share']:.1f} %"
    peer = "" if row["peer"] is None else f"{row['peer']} {number(row['peer_value'])}".strip()
    return [row["suite"], row["case"], row["metric"], f"{number(row['value'])} {row['unit']}", number(row["limit"]),
            share, peer, ratio]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--title", required=True)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", required=True)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    lines = [f"# {args.title}", "", f"Measured {datetime.date.today().isoformat()}. {args.note}".strip(), ""]
    for path in args.files:
        with open(path) as file:
            document = json.load(file)
        machine = ", ".join(f"{key} {number(value) if isinstance(value, float) else value}"
                            for key, value in document["machine"].items() if not isinstance(value, (list, dict)))
        lines += [machine, "", "| suite | case | metric | measured | limit | share | peer | against it |",
                  "|---|---|---|---|---|---|---|---|"]
        lines += ["| " + " | ".join(row_cells(row)) + " |" for row in document["rows"]]
        lines.append("")
    with open(args.out, "w") as out:
        out.write("\n".join(lines))


if __name__ == "__main__":
    main()
