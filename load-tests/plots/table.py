"""Writes the table of architecture §10 into docs/performance.md, out of load-tests/results/*.json, and below it the
pictures that plot.py drew. Needs no packages.

    python3 load-tests/plots/table.py [--check]

Everything between the two markers is replaced. --check: only says whether the page is as the results are.
"""

import argparse
import json
import pathlib
import sys

BEGIN, END = "<!-- begin: load-tests/plots/table.py -->", "<!-- end: load-tests/plots/table.py -->"

# In the order of the architecture's table.
ORDER = [
    "fanout-1", "fanout-10", "drain", "ingest-single", "ingest-batch", "failures-10pct", "latency-200", "latency-1000",
    "slow-endpoints", "memory", "kill-gap", "growth-snapshot",
]

# What stands below the table: a picture, what it shows, and what to know about it.
PICTURES = [
    ("baseline", "Sustained rates and latencies of Postrider and of the classic worker, in the same runs", ""),
    ("growth-history", "Throughput and time of a claim with a thousand to ten million ended deliveries in the tables", ""),
    ("growth-endpoints", "Throughput and time of a claim with 10 to 100,000 endpoints, all of them busy", ""),
    (
        "growth-workers",
        "Throughput with 1, 2 and 4 workers",
        "More workers on a machine whose cores are all in use bring nothing: this shows what they cost there, not what more"
        " machines would bring.",
    ),
    ("growth-snapshot", "Throughput, claims and dead rows before, while and after a snapshot is held", ""),
    ("soak", "Memory, files, threads and dead rows over the deliveries of hours at 200/s", ""),
]


def number(value):
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


def ratio(result):
    baseline, ratio = result.get("baseline"), result.get("ratio")
    if not baseline:
        return ""
    if not ratio:
        return "none arrived"
    figure = baseline["deliveries_per_second"] if ratio["of"] == "deliveries_per_second" else baseline["p99"]
    unit = "/s" if ratio["of"] == "deliveries_per_second" else " ms p99"
    return f"{ratio['times']:g} × ({number(figure)}{unit})"


def machine(result):
    calibration = result["calibration"]
    parts = [f"{number(calibration['fdatasync_per_second'])} fdatasync/s"]
    wrk = calibration.get("wrk_requests_per_second")
    loopback = wrk or calibration["loopback_requests_per_second"]
    parts.append(f"{number(loopback)} requests/s{'' if wrk else ' (generator)'}")
    parts.append(f"others {number(result['other_cpu_seconds'])} s")
    return ", ".join(parts)


def rows(results):
    for name in ORDER:
        result = results.get(name)
        for at, aim in enumerate(result.get("aims", []) if result else []):
            first = at == 0
            yield [
                f"`{name}`" if first else "",
                f"{aim['what']}, {aim['unit']}",
                number(aim["floor"]),
                number(aim["target"]),
                number(aim["stretch"]),
                f"**{number(aim['measured'])}**",
                {"none": "below the floor"}.get(aim["reached"], aim["reached"]),
                ratio(result) if first else "",
                result["date"] if first else "",
                machine(result) if first else "",
            ]


def table(results):
    head = ["scenario", "figure", "floor", "target", "stretch", "measured", "reached", "classic worker", "date", "machine"]
    measured = list(rows(results))
    lines = [head, ["---"] * len(head), *measured] if measured else []
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def pictures(directory):
    for name, what, note in PICTURES:
        if (directory / "performance" / f"{name}.svg").exists():
            yield f"\n![{what}](performance/{name}.svg)\n"
            yield f"\n{note}\n" if note else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=pathlib.Path, default="load-tests/results")
    parser.add_argument("--page", type=pathlib.Path, default="docs/performance.md")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    results = {
        path.stem: json.loads(path.read_text()) for path in arguments.results.glob("*.json") if "." not in path.stem
    }
    page = arguments.page.read_text()
    before, rest = page.split(BEGIN)
    _old, after = rest.split(END)
    below = "".join(pictures(arguments.page.parent))
    new = f"{before}{BEGIN}\n{table(results)}{below}{END}{after}"
    if arguments.check:
        sys.exit(0 if new == page else "docs/performance.md is not as the results are: make figures")
    arguments.page.write_text(new)


if __name__ == "__main__":
    main()
