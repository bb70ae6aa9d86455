#!/usr/bin/python3
"""Plots and tables of what bench/convergence --format json printed.

    bench/learning/plot.py [--out docs/plots] [--table] ROWS.jsonl ...

For each model, data set, number of cuts and of steps OUT/convergence-MODEL-DATA-CUTS-cuts-STEPS-steps.svg: held-out
loss against steps and against emulated seconds, the mean of the seeds and what lies between the least and the largest
of them. --table prints Markdown: how far the last loss is above that of dense links of the same seed, and how long it takes to come within 1%
of the last dense loss. Rows of a run that was cut short count as far as they go. Needs python3-matplotlib
(./dev install plots) unless --table alone is wanted.
"""
import argparse
import collections
import json
import math
import os
import statistics
import sys

WITHIN = 0.01  # above the dense loss: what a codec may cost
STYLES = {  # by how the codec's name begins: colour, dashes
    "dense": ("#000000", "-"), "auto": ("#1a9641", "-"), "fp16": ("#9ecae1", "-"), "int8": ("#6baed6", "-"),
    "int6": ("#3182bd", "-"), "int5": ("#2171b5", "-"), "int4": ("#08519c", "-"),
    "int3": ("#54278f", "-"), "adatopk": ("#b10026", "-"),
    "topk:0.02:int8+int4": ("#41b6c4", "--"), "topk:0.1:fp16": ("#fd8d3c", "--"),
    "topk:0.02:fp16": ("#e31a1c", "--"), "topk:0.01:fp16": ("#800026", ":"),
}


class Series:
    """One way to send tensors, in one setting: points by seed and step."""

    def __init__(self):
        self.ratio = 1.0
        self.points = collections.defaultdict(dict)  # seed -> step -> row
        self.codec = ""

    def curve(self, seed):
        return [self.points[seed][step] for step in sorted(self.points[seed])]


def read(paths):
    """{(model, data, cuts, steps): {label: Series}}, and the setting's line by the same key."""
    runs = collections.defaultdict(lambda: collections.defaultdict(Series))
    settings = {}
    for path in paths:
        steps = {}  # by number of cuts
        with open(path, encoding="utf-8") as lines:
            for at, line in enumerate(lines, 1):
                if not line.endswith("\n"):
                    break  # cut short
                try:
                    row = json.loads(line)
                    if row["event"] == "setting":
                        steps[row["cuts"]] = row["steps"]
                    key = (row["model"], row["data"], row["cuts"], steps[row["cuts"]])
                    if row["event"] == "setting":
                        settings[key] = row
                    if row["event"] != "row":
                        continue
                    label = row["policy"] if row["policy"] in ("auto", "adatopk") else row["codec"]
                    series = runs[key][label]
                    series.ratio, series.codec = row["ratio"], row["codec"]
                    series.points[row["seed"]][row["step"]] = row
                except (ValueError, KeyError) as error:
                    sys.exit(f"{path}:{at}: no line of bench/convergence --format json: {error!r}")
    return runs, settings


def number(value):
    return math.inf if value is None else value  # a loss that is not finite


def seconds_to(curve, loss):
    """When the curve first comes down to the loss, between points by straight lines; None: never."""
    before = None
    for row in curve:
        here = number(row["loss"])
        if here <= loss:
            if before is None or math.isinf(number(before["loss"])):
                return row["emulated_seconds"]
            share = (before["loss"] - loss) / (before["loss"] - here)
            return before["emulated_seconds"] + share * (row["emulated_seconds"] - before["emulated_seconds"])
        before = row
    return None


def complete_seeds(series, dense, steps):
    """Seeds that went to the end, as dense links did, or diverged on the way."""
    seeds = []
    for seed in sorted(series.points):
        if seed not in dense.points or steps not in dense.points[seed]:
            continue
        last = series.curve(seed)[-1]
        if last["step"] == steps or number(last["training_loss"]) == math.inf:
            seeds.append(seed)
    return seeds


def mean(values):
    return statistics.fmean(values) if all(map(math.isfinite, values)) else math.inf


def percent(value, deviation=None):
    if not math.isfinite(value):
        return "not finite"
    if value > 10:
        return f"{1 + value:.3g} times"
    return f"{100 * value:+.2f}%" + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def print_table(key, of, setting):
    model, data, cuts, steps = key
    dense = of["dense"]
    print(f"\n{model} on {data}, {cuts} cuts, {steps} steps"
          f" of {setting['batch_size']} in microbatches of {setting['microbatch_size']}; {setting['network']}:\n")
    print("| codec | ratio | seeds | last loss above dense | the same, links dense in evaluation | s a step "
          "| s to 1% above the last dense loss |")
    print("|---|---|---|---|---|---|---|")
    for label, series in of.items():
        seeds = complete_seeds(series, dense, steps)
        if not seeds:
            continue
        above, uncompressed, times = [], [], []
        for seed in seeds:
            last, reference = series.curve(seed)[-1], dense.curve(seed)[-1]["loss"]
            above.append(number(last["loss"]) / reference - 1)
            uncompressed.append(number(last["loss_uncompressed_forward"]) / reference - 1)
            times.append(seconds_to(series.curve(seed), (1 + WITHIN) * reference))
        last = series.curve(seeds[-1])[-1]
        spread = statistics.stdev(above) if len(above) > 1 and math.isfinite(mean(above)) else None
        name = f"{label}: {series.codec}" if label in ("auto", "adatopk") else label
        print(f"| {name} | {series.ratio:.3g} | {len(seeds)} | "
              + ("" if label == "dense" else percent(mean(above), spread)) + " | "
              + ("" if label == "dense" else percent(mean(uncompressed)))
              + f" | {last['emulated_seconds'] / last['step']:.3g} | "
              + (f"{mean(times):.3g}" if None not in times else "never") + " |")


def style_of(label):
    for begin in sorted(STYLES, key=len, reverse=True):
        if label.startswith(begin):
            return STYLES[begin]
    return ("#888888", "-.")


def plot(key, of, setting, out):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "weft", "font.size": 8, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6", "axes.axisbelow": True})
    model, data, cuts, last_step = key
    dense = of["dense"]
    figure, panels = pyplot.subplots(1, 2, figsize=(8.6, 3.6), sharey=True)
    first = [dense.curve(seed)[0]["loss"] for seed in dense.points]
    last = [dense.curve(seed)[-1]["loss"] for seed in dense.points]
    # What learns fills the panel; what does not leaves it at the top.
    top = max(first) + 0.35 * (max(first) - min(last))
    beyond = []
    for label, series in of.items():
        colour, dashes = style_of(label)
        seeds = [series.points[seed] for seed in complete_seeds(series, dense, last_step)]
        if not seeds:
            continue
        steps = [step for step in sorted(seeds[0]) if all(step in points for points in seeds)]
        losses = {step: [number(points[step]["loss"]) for points in seeds] for step in steps}
        steps = [step for step in steps if all(map(math.isfinite, losses[step]))]
        means = [statistics.fmean(losses[step]) for step in steps]
        seconds = [statistics.fmean(points[step]["emulated_seconds"] for points in seeds)
                   for step in steps]
        ratio = "" if label == "dense" else f", {series.ratio:.3g}x"
        name = f"auto ({series.codec})" if label == "auto" else label
        if not means or min(means) > top:
            beyond.append(f"{name}{ratio}")
            continue
        for panel, xs in zip(panels, (steps, seconds)):
            panel.plot(xs, means, color=colour, linestyle=dashes, linewidth=1.8 if label in ("dense", "auto") else 1.1,
                       label=name + ratio, zorder=3 if label in ("dense", "auto") else 2)
            panel.fill_between(xs, [min(losses[s]) for s in steps], [max(losses[s]) for s in steps], color=colour,
                               alpha=0.12, linewidth=0)
    panels[0].set_ylim(min(last) - 0.06 * (top - min(last)), top)
    panels[0].set_ylabel("held-out loss, over the same codecs")
    panels[0].set_xlabel("step")
    panels[1].set_xlabel("emulated seconds")
    panels[1].set_xscale("log")
    counts = {len(complete_seeds(series, dense, last_step)) for series in of.values()} - {0}
    seeds = "1 seed" if counts == {1} else " to ".join(map(str, sorted({min(counts), max(counts)}))) + " seeds"
    title = f"{model} on {data}, {cuts} cuts, {seeds}\n{setting['network']}"
    if beyond:
        title += "\nabove the panel: " + "; ".join(beyond)
    figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center right", frameon=False, fontsize=7)
    figure.tight_layout(rect=(0, 0, 0.78, 1.0))
    path = os.path.join(out, f"convergence-{model}-{data}-{cuts}-cuts-{last_step}-steps.svg")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    print(f"{path}: {os.path.getsize(path)} bytes", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description="Plots and tables of bench/convergence --format json.")
    parser.add_argument("rows", nargs="+", help="files of json lines")
    parser.add_argument("--out", help="folder for the plots, made if it is not there")
    parser.add_argument("--table", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    runs, settings = read(options.rows)
    if not options.out and not options.table:
        parser.error("nothing to do: --out FOLDER, --table, or both")
    for key, of in runs.items():
        if "dense" not in of:
            print(f"{key}: no rows of dense links to compare with", file=sys.stderr)
            continue
        if options.table:
            print_table(key, of, settings[key])
        if options.out:
            os.makedirs(options.out, exist_ok=True)
            plot(key, of, settings[key], options.out)


if __name__ == "__main__":
    main()
