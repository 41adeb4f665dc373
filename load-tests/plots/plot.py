"""Draws the results of load-tests as SVG: load-tests/.venv/bin/python load-tests/plots/plot.py

Reads load-tests/results/*.json, writes docs/performance/*.svg, a file for each picture whose results there are. The same
results give the same bytes.
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

BLUE, ORANGE, GREEN, RED, GREY = "#2563a8", "#d9822b", "#3b8f5a", "#b83a3a", "#8a8f98"

STYLE = {
    "svg.hashsalt": "postrider",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e5e8",
    "grid.linewidth": 0.8,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 6,
    "figure.constrained_layout.use": True,
}


def short(value, _position=None):
    """10000 → 10k"""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def rounded(value):
    """Three digits at most: 7439 → 7.4k, 10713 → 10.7k"""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}" if value < 100 * size else f"{value / size:.0f}{unit}"
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def panels(count, width=8.4, height=3.3):
    figure, axes = pyplot.subplots(1, count, figsize=(width, height), squeeze=False)
    return figure, axes[0]


def along(axis, places, values, what, unit, color, logarithmic=True):
    """One line over places of very different size, each marked."""
    axis.plot(places, values, color=color, marker="o")
    if logarithmic:
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(places, [short(place) for place in places])
    axis.margins(x=0.12)
    axis.set_ylim(0, max(values) * 1.25)
    axis.yaxis.set_major_formatter(FuncFormatter(short))
    axis.set_title(what)
    axis.set_ylabel(unit)
    for place, value in zip(places, values):
        axis.annotate(rounded(value), (place, value), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=9)


def growth(result, field, label):
    """Throughput and the time of a claim over what grows."""
    points = result["details"]["points"]
    places = [point[field] for point in points]
    figure, (left, right) = panels(2)
    along(left, places, [point["throughput_per_second"] for point in points], "Throughput", "deliveries/s", BLUE)
    along(right, places, [point["claim"]["mean_ms"] for point in points], "Time of a claim, mean", "ms", ORANGE)
    for axis in (left, right):
        axis.set_xlabel(label)
    return figure


def history(result):
    return growth(result, "history_rows", "ended deliveries in the tables")


def endpoints(result):
    return growth(result, "endpoints", "endpoints, all of them busy")


def workers(result):
    points = result["details"]["points"]
    cores = result["calibration"]["cores"]
    figure, (axis,) = panels(1, width=5)
    places = [point["workers"] for point in points]
    throughput = [point["throughput_per_second"] for point in points]
    along(axis, places, throughput, "Throughput", "deliveries/s", BLUE, logarithmic=False)
    axis.set_xlabel(f"worker processes, everything on {cores} cores")
    return figure


def snapshot(result):
    """The course of a run in which a snapshot was held."""
    course = result["details"]["course"]
    minutes = [step["at_seconds"] / 60 for step in course]
    held = [at for at, step in zip(minutes, course) if step["phase"] == "held"]
    before = [at for at, step in zip(minutes, course) if step["phase"] == "before"]
    figure, axes = panels(3, width=11)
    full = [step["full_speed"] for step in course]
    series = [
        ("Throughput", "deliveries/s", BLUE, [step["throughput_per_second"] for step in course]),
        ("Time of a claim", "ms", ORANGE, [step["claim"]["mean_ms"] for step in course]),
        ("Dead rows of the queue", "rows", RED, [step["dead_rows"] for step in course]),
    ]
    for axis, (what, unit, color, values) in zip(axes, series):
        if held:
            axis.axvspan(before[-1] if before else held[0], held[-1], color="#f0f1f3", zorder=0)
        if unit == "deliveries/s":
            steady = [(at, value) for at, value, it in zip(minutes, values, full) if not it]
            peaks = [(at, value) for at, value, it in zip(minutes, values, full) if it]
            axis.plot(*zip(*steady), color=color, label="500/s are posted")
            axis.plot(*zip(*peaks), color=ORANGE, linestyle="none", marker="D", label="as many as are delivered")
            for at, value in peaks:
                axis.annotate(rounded(value), (at, value), xytext=(0, 7), textcoords="offset points", ha="center")
            axis.set_ylim(0, max(values) * 1.45)
            axis.legend(loc="upper left", fontsize=9)
        else:
            axis.plot(minutes, values, color=color, marker="o", markersize=3, label="mean" if unit == "ms" else None)
        if unit == "ms":
            slowest = [step["claim"]["p99_ms"] for step in course]
            axis.plot(minutes, slowest, color=GREY, linewidth=1.2, label="p99")
            axis.legend(loc="upper left")
        axis.margins(x=0.08)
        axis.set_title(what)
        axis.set_ylabel(unit)
        axis.set_xlabel("minutes; grey: the snapshot is held")
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(FuncFormatter(short))
    return figure


def soak(result):
    """What is held while hours' worth of deliveries go through."""
    samples = result["details"]["samples"]
    an_hour = result["scenario"]["load"]["scripted"]["soak"]["per_second"] * 3600
    hours = [sample["deliveries"] / an_hour for sample in samples]
    figure, axes = panels(3, width=11)
    processes = [("worker", BLUE), ("api", GREEN)]
    for name, color in processes:
        of = [sample["processes"].get(name, {}) for sample in samples]
        axes[0].plot(hours, [it.get("rss_kb", 0) / 1024 for it in of], color=color, label=name)
        axes[1].plot(hours, [it.get("files", 0) for it in of], color=color, label=f"{name}, files")
        axes[1].plot(hours, [it.get("threads", 0) for it in of], color=color, linestyle=":", label=f"{name}, threads")
    dead = [sum(sample["dead_rows"].values()) for sample in samples]
    axes[2].plot(hours, dead, color=RED)
    titles = [("Resident memory", "MB"), ("Open files and threads", "number"), ("Dead rows of the live tables", "rows")]
    for axis, (what, unit) in zip(axes, titles):
        axis.set_title(what)
        axis.set_ylabel(unit)
        axis.set_xlabel("hours at 200 deliveries/s")
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(FuncFormatter(short))
        if axis is not axes[2]:
            axis.set_ylim(0, axis.get_ylim()[1] * 1.3)
            axis.legend(loc="upper left", fontsize=9, ncols=2)
    return figure


def baseline(results):
    """Ours beside the classic design, in the same runs."""
    figure, (left, right) = panels(2, width=9.5)
    rates = [it for it in results if it["ratio"] and it["ratio"]["of"] == "deliveries_per_second"]
    latencies = [it for it in results if it not in rates]
    ours = [it["throughput_per_second"] for it in rates]
    theirs = [it["baseline"]["deliveries_per_second"] for it in rates]
    bars(left, rates, ours, theirs, "Sustained, more is better", "deliveries/s")
    if latencies:
        ours = [our_p99(it) for it in latencies]
        theirs = [it["baseline"]["p99"] for it in latencies]
        bars(right, latencies, ours, theirs, "p99 from POST to receipt, less is better (logarithmic)", "ms")
        right.set_yscale("log")
        right.set_ylim(1, most(ours + theirs) * 8)
        right.yaxis.set_minor_locator(NullLocator())
    else:
        right.set_axis_off()
    return figure


def most(values):
    return max(value for value in values if value is not None)


def our_p99(result):
    healthy = result["details"].get("healthy_while_hanging_ms")
    return (healthy or result["latency_ms"])["p99"]


def bars(axis, results, ours, theirs, what, unit):
    places = range(len(results))
    width = 0.36
    for shift, values, color, label in ((-width, ours, BLUE, "Postrider"), (0, theirs, GREY, "classic worker")):
        at = [place + shift + width / 2 for place in places]
        # Of what did not arrive nobody knows how long it took.
        heights = [most(ours + theirs) if value is None else value for value in values]
        drawn = axis.bar(at, heights, width=width, color=color, label=label)
        for place, value, height, bar in zip(at, values, heights, drawn):
            if value is None:
                bar.set(facecolor="white", edgecolor=color, hatch="///")
                axis.annotate("none arrived", (place, height), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8.5)
                continue
            axis.annotate(rounded(value), (place, value), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8.5)
    names = [result["scenario"]["name"] for result in results]
    names = [name.replace("-", "-\n", 1) if len(name) > 11 else name for name in names]
    axis.set_xticks(list(places), names)
    axis.grid(axis="x", visible=False)
    axis.set_title(what)
    axis.set_ylabel(unit)
    axis.set_ylim(0, most(ours + theirs) * 1.3)
    axis.yaxis.set_major_formatter(FuncFormatter(short))
    axis.legend(loc="upper right", ncols=2)


GROWTH = {
    "growth-history": history,
    "growth-endpoints": endpoints,
    "growth-workers": workers,
    "growth-snapshot": snapshot,
    "soak": soak,
}


def read(directory, kind):
    """The results by scenario; `kind` is .json or .short.json."""
    results = {}
    for path in sorted(directory.glob(f"*{kind}")):
        name = path.name.removesuffix(kind)
        if "." not in name:
            results[name] = json.loads(path.read_text())
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=pathlib.Path, default="load-tests/results")
    parser.add_argument("--output", type=pathlib.Path, default="docs/performance")
    parser.add_argument("--short", action="store_true", help="draw short runs, to look at the pictures")
    arguments = parser.parse_args()
    results = read(arguments.results, ".short.json" if arguments.short else ".json")
    pyplot.rcParams.update(STYLE)
    arguments.output.mkdir(parents=True, exist_ok=True)
    figures = {name: draw(results[name]) for name, draw in GROWTH.items() if name in results}
    beside = [result for result in results.values() if result.get("baseline")]
    if beside:
        figures["baseline"] = baseline(beside)
    for name, figure in figures.items():
        path = arguments.output / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        # matplotlib ends lines with spaces.
        path.write_text("".join(line.rstrip() + "\n" for line in path.read_text().splitlines()))
        pyplot.close(figure)
        print(path)


if __name__ == "__main__":
    main()
