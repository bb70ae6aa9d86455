#!/usr/bin/python3
"""What a ring of peers reaches over wide-area links: tokens a second at the client, beside what the links allow.

    bench/serve_ring.py [--format json] [--smoke] [--round-trips MS ...] [--streams N ...] [--tokens N] [--turns N]
                        [--rate 20Mbit | --network FILE] [--slower N] [--drafts ACCEPTANCE ...]
                        [--real [--stages N ...]] [--guessed MODEL DRAFT] [--beside]

A real broker with its HTTP door and real peers on emulated lines and links, which serve the example GPT in four
stages. Peers are null devices: a row takes about 2 ms in each stage, and nothing is computed. Rows:

  bound       1/(C+L): C computing of all stages and L the latencies of all hops, once round (bytes not counted)
  predicted   what the plan says, from the links as peers measured them
  stage       what the slowest stage makes by itself, a row a pass
  client      every hop by way of the client, as Petals does it: a round trip from the client to each stage, and
              computing. Worked out from the same links, not measured
  streams     so many requests at once, temperature 0; of one the time between its tokens counts
  draft       one request, and guesses that are right by a coin (serve.draft: coin:P). The bound is
              G/(C+L+(G-1)tau): G tokens for each wrong guess, at what was right of the guesses, tau the slowest
              stage's row
  long prompt  when a prompt of half the context has its first token, nothing else being served

--real takes peers that compute (cpu:1) on loopback without emulation, in 1, 2 and 3 stages, beside `weft serve`.
--guessed takes a model and a small one of the same tokens, on peers that compute, over the emulated links: without
guesses, by repetition in the text, and by the small model, greedy and at temperature 0.8.
--beside has the same peers train another model meanwhile: what that costs streams, and what streams cost a step.
"""
import argparse
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("WEFT_BUILD", os.path.join(ROOT, "build/release"))
WEFT = os.path.join(BUILD, "weft")
STAGES = 4
DEADLINE = 90  # seconds that anything may take
LONG = "Once upon a time " * 3 + "there was a p"  # half of the context, as a plan reckons


def fail(text):
    raise SystemExit("bench/serve_ring: " + text)


class Cluster:
    """A broker and peers as processes of this one, in a folder of their own."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="weft-serve-ring-")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("WEFT")}
        self.environment["XDG_CONFIG_HOME"] = self.path("config")
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, name, *arguments, **options):
        log = open(self.path(name + ".log"), "ab")
        self.processes.append(subprocess.Popen([WEFT, *arguments], stderr=log, env=self.environment, text=True, **options))
        return self.processes[-1]

    def weft(self, *arguments):
        done = subprocess.run([WEFT, *arguments], env=self.environment, text=True, capture_output=True, timeout=DEADLINE)
        if done.returncode:
            fail(f"weft {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def lines_of(self, process, wanted):
        """What each pattern found, in the lines that the process prints until all are."""
        found, overdue = {}, threading.Timer(DEADLINE, process.kill)
        overdue.start()
        for line in process.stdout:
            for pattern in wanted:
                if match := re.search(pattern, line):
                    found[pattern] = match[1]
            if len(found) == len(wanted):
                break
        overdue.cancel()
        if len(found) != len(wanted):
            fail(f"{process.args[1]} did not start: " + self.last_words())
        threading.Thread(target=lambda: [None for _ in process.stdout], daemon=True).start()
        return [found[pattern] for pattern in wanted]

    def last_words(self):
        logs = [self.path(name) for name in os.listdir(self.folder) if name.endswith(".log")]
        return "\n".join(line for log in logs for line in open(log, errors="replace").read().splitlines()[-3:])

    def start_broker(self, *arguments):
        broker = self.start("broker", "broker", "--data-dir", self.path("broker"), "--listen", "127.0.0.1:0", "--http",
                            "127.0.0.1:0", *arguments, stdout=subprocess.PIPE)
        patterns = [r"weft join (\S+)", r"weft join \S+ --token (\S+)", r"submitter token: (\S+)",
                    r"served models: http://([^/\s]+)"]
        self.address, self.token, mine, self.door = self.lines_of(broker, patterns)
        self.environment.update(WEFT_BROKER=self.address, WEFT_TOKEN=mine)

    def start_peer(self, name, *arguments):
        self.start(name, "join", self.address, "--token", self.token, "--name", name, "--data-dir", self.path("peer-" + name),
                   "--listen", "127.0.0.1:0", *arguments, stdout=subprocess.DEVNULL)

    def until(self, what, is_so):
        end = time.monotonic() + DEADLINE
        while not is_so():
            if time.monotonic() > end:
                fail(f"{what} after {DEADLINE} s: " + self.last_words())
            time.sleep(0.2)

    def events(self, *arguments):
        return [json.loads(line) for line in self.weft(*arguments, "--format", "json").splitlines()]

    def start_over(self, network, device, links):
        """A broker, and a peer of each of the network's lines, which are emulated."""
        lines = self.path("lines.yaml")
        with open(lines, "w") as file:
            file.write(network.cluster_file())
        self.start_broker("--links", links)
        for name, region in network.peers.items():
            self.start_peer(name, "--device", device, "--emulate", lines, "--region", region, "--as", name)
        self.wait_for_peers(len(network.peers), links == "measure")

    def wait_for_peers(self, count, links):
        def are_there():
            return sum(event.get("state") == "pool" for event in self.events("peers")) >= count

        def are_known():
            known = [event for event in self.events("peers", "--links") if event.get("event") == "link"]
            return sum(not link["assumed"] for link in known) >= count * (count - 1)

        self.until(f"not all of {count} peers have joined", are_there)
        if links:
            self.until("not all links are measured", are_known)

    def serve(self, job):
        self.weft("submit", job, "--detach")
        self.jobs = getattr(self, "jobs", 0) + 1
        self.until("the model is not served", self.is_served)

    def is_served(self):
        try:
            return bool(json.loads(get(self.door, "/v1/models"))["data"])
        except OSError:
            return False

    def stop_serving(self):
        self.weft("stop", str(self.jobs))
        self.until("the model is served still", lambda: not self.is_served())


def get(door, path):
    connection = http.client.HTTPConnection(door, timeout=DEADLINE)
    connection.request("GET", path)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def stream(door, tokens, times, prompt="Once", seed=0, temperature=0):
    """Asks for a text; notes when each of its tokens came."""
    connection = http.client.HTTPConnection(door, timeout=DEADLINE)
    body = json.dumps({"model": "gpt", "prompt": prompt, "max_tokens": tokens, "temperature": temperature,
                       "seed": seed, "stream": True})
    begun = time.monotonic()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        fail(f"the door says {answer.status}: {answer.read().decode()}")
    while line := answer.readline():
        if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
            times.append(time.monotonic() - begun)
    connection.close()


def first_token_ms(door, turns):
    firsts = []
    for _ in range(turns):
        times = []
        stream(door, 2, times, LONG)
        firsts.append(times[0])
    return 1e3 * statistics.median(firsts)


def ask(door, streams, tokens):
    """Tokens a second of all together once they have begun, milliseconds between those of one, and to its first one."""
    times = [[] for _ in range(streams)]
    threads = [threading.Thread(target=stream, args=(door, tokens, each)) for each in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(len(each) < 2 for each in times):
        fail("a stream ended without its tokens")
    between = [(each[-1] - each[0]) / (tokens - 1) for each in times]
    return {"tokens_per_second": sum(1 / each for each in between), "token_ms": 1e3 * statistics.median(between),
            "first_token_ms": 1e3 * statistics.median(each[0] for each in times)}


def guesses_right(door):
    metrics = get(door, "/metrics").decode()
    return [sum(float(line.split()[-1]) for line in metrics.splitlines() if re.match(rf"weft_serve_guesses{which}_total\b", line))
            for which in ("", "_right")]


def guessed(door, tokens, turns, temperature=0):
    """One request after another, each with another seed: tokens a second, and what part of tokens was guessed right."""
    before, seconds = guesses_right(door), 0
    for turn in range(turns):
        times = []
        stream(door, tokens, times, "Once" if temperature == 0 else "ROMEO:", turn + 1, temperature)
        seconds += times[-1] - times[0]
    # The last ones are told of with the next request's tokens.
    stream(door, 1, [], "Once")
    right = guesses_right(door)[1] - before[1]
    count = turns * (tokens - 1)
    return {"tokens_per_second": count / seconds, "acceptance": right / count, "guesses": guesses_right(door)[0] - before[0]}


def medians(door, streams, tokens, turns):
    rows = [ask(door, streams, tokens) for _ in range(turns if streams == 1 else 1)]  # of many each is one
    # On a machine with other work the least disturbed turn says most.
    return {**{key: statistics.median(row[key] for row in rows) for key in rows[0]},
            "best_tokens_per_second": max(row["tokens_per_second"] for row in rows)}


def write_job(cluster, stages, sequences, model=f"{ROOT}/examples/gpt/model.onnx", draft="none"):
    job = cluster.path("serve.yaml")
    with open(job, "w") as file:
        file.write(f"format: 1\nmodel: {model}\ntask: serve\nplacement: {{stages: {stages}}}\n"
                   f"serve: {{name: gpt, chat_template: plain, sequences_max: {sequences}, draft: \"{draft}\"}}\n")
    return job


class Equal:
    """Four peers, each as far from each, on lines of their own; the client and the broker are as far away."""

    def __init__(self, round_trip, rate):
        self.name, self.round_trip_ms, self.rate = f"{round_trip:g} ms", round_trip, rate
        self.peers = {f"p{index}": "here" for index in range(STAGES)}

    def cluster_file(self):
        lines = "".join(f"  - {{name: {name}, type: rtx3080, region: here, uplink: {self.rate}, downlink: {self.rate}}}\n"
                        for name in self.peers)
        link = f"{{round_trip_ms: {self.round_trip_ms}, bandwidth: {self.rate}}}"
        return f"devices:\n{lines}broker: here\nregions: {{within: {link}}}\n"

    def round_trip(self, *_):
        return self.round_trip_ms


class Regions:
    """A peer in each region of a file, as bench/wan takes it; the client and the broker are in the first one."""

    def __init__(self, path):
        with open(path) as file:
            network = json.load(file)
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.regions, self.trips, self.rates = (network[key] for key in ("regions", "round_trip_ms", "bandwidth_gbit_per_s"))
        self.peers = {name.lower(): name for name in self.regions}

    def cluster_file(self):
        def link(a, b):
            return f"round_trip_ms: {self.trips[a][b]}, bandwidth: {round(1e3 * self.rates[a][b])}Mbit"

        count = range(len(self.regions))
        between = "".join(f"    - {{from: {self.regions[a]}, to: {self.regions[b]}, {link(a, b)}}}\n"
                          for a in count for b in count if a < b)
        devices = "".join(f"  - {{name: {name}, type: rtx3080, region: {region}, uplink: 1Gbit, downlink: 1Gbit}}\n"
                          for name, region in self.peers.items())
        return (f"devices:\n{devices}broker: {self.regions[0]}\nregions:\n  within: {{{link(0, 0)}}}\n  between:\n{between}")

    def round_trip(self, a, b=None):
        at, to = self.regions.index(self.peers[a]), self.regions.index(self.peers[b]) if b else 0
        return self.trips[at][to]


def limits(network, stages):
    """What the ring could do at most, and what every hop by way of the client would."""
    ring = [stage["device"] for stage in stages]
    computing = sum(stage["row_seconds"] for stage in stages)
    latency = sum(network.round_trip(a, b) for a, b in zip(ring, ring[1:] + ring[:1])) / 2e3
    by_client = sum(network.round_trip(name) for name in ring) / 1e3
    slowest = max(stage["row_seconds"] for stage in stages)
    yield {"row": "bound", "network": network.name, "ring": ring, "computing_ms": 1e3 * computing,
           "latency_ms": 1e3 * latency, "tokens_per_second": 1 / (computing + latency)}
    yield {"row": "client, computed", "network": network.name, "tokens_per_second": 1 / (computing + by_client)}
    yield {"row": "stage", "network": network.name, "tokens_per_second": 1 / slowest}


def wide_area(options, network):
    with Cluster() as cluster:
        cluster.start_over(network, f"null:rtx3080/{options.slower}", options.links)
        job = write_job(cluster, STAGES, max(options.streams))
        # Before it is submitted, for its peers are free then.
        plans = {n: cluster.events("plan", job, "--live", "--set", f"serve.sequences_max={n}")[0]
                 for n in {*options.streams, max(options.streams)}}
        cluster.serve(job)
        bound, client, stage = limits(network, plans[max(options.streams)]["stages"])
        yield from (bound, client, stage)
        for streams in options.streams:
            plan = plans[streams]
            predicted = plan["tokens_per_second_of_one"] if streams == 1 else plan["tokens_per_second"]
            row = {"row": "streams", "network": network.name, "streams": streams,
                   **medians(cluster.door, streams, options.tokens, options.turns), "predicted": predicted}
            of, beside = ("of_bound", bound) if streams == 1 else ("of_stage", stage)
            yield {**row, of: row["tokens_per_second"] / beside["tokens_per_second"]}
        # A request goes from the broker to the entry, and its first token back.
        yield {"row": "long prompt", "network": network.name, "first_token_ms": first_token_ms(cluster.door, options.turns),
               "predicted_ms": 1e3 * plans[max(options.streams)]["first_token_seconds"] + network.round_trip(bound["ring"][0])}
        for acceptance in options.drafts:
            cluster.stop_serving()
            job = write_job(cluster, STAGES, 1, draft=f"coin:{acceptance}")
            plan = cluster.events("plan", job, "--live")[0]
            cluster.serve(job)
            bound, client, stage = limits(network, plan["stages"])
            row = {"row": "draft", "network": network.name, "right": acceptance,
                   **guessed(cluster.door, 120, 3 * options.turns)}
            once = (bound["computing_ms"] + bound["latency_ms"]) / 1e3
            many = 1 / max(1e-9, 1 - row["acceptance"])
            limit = many / (once + (many - 1) / stage["tokens_per_second"])
            yield {**row, "bound": limit, "of_bound": row["tokens_per_second"] / limit,
                   "times_client": row["tokens_per_second"] / client["tokens_per_second"],
                   "predicted_at_0.8": plan.get("tokens_per_second_of_one_guessed")}


def steps_of(cluster, job):
    """Seconds of each step that the job has made."""
    return [event["seconds"] for event in cluster.events("logs", str(job)) if event.get("event") == "step"]


def beside_a_training(options, network):
    """The ring by itself, the training by itself, and both at once on the same peers."""
    least = 2 if options.smoke else 20  # steps
    with Cluster() as cluster:
        cluster.start_over(network, f"null:rtx3080/{options.slower}", options.links)
        cluster.serve(write_job(cluster, STAGES, max(options.streams)))
        alone = {n: medians(cluster.door, n, options.tokens, options.turns) for n in options.streams}
        folder = cluster.path("training")
        shutil.copytree(f"{ROOT}/examples/gpt", folder)
        with open(os.path.join(folder, "corpus.txt"), "w") as text:
            text.write("the quick brown fox jumps over the lazy dog.\n" * 3000)
        settings = ["steps=100000", f"placement.stages={STAGES}", "evaluate_every=null", "checkpoint=null"]
        cluster.weft("submit", os.path.join(folder, "job.yaml"), "--detach", *(word for each in settings for word in ("--set", each)))
        cluster.until(f"no {least} steps", lambda: len(steps_of(cluster, 2)) > least)
        idle = statistics.median(steps_of(cluster, 2)[1:])
        for streams in options.streams:
            begun, rows = len(steps_of(cluster, 2)), []
            while len(steps_of(cluster, 2)) < begun + least:
                rows.append(medians(cluster.door, streams, options.tokens, options.turns))
            row = {key: statistics.median(each[key] for each in rows) for key in rows[0]}
            busy = statistics.median(steps_of(cluster, 2)[begun:])
            yield {"row": "beside", "network": network.name, "streams": streams, **row,
                   "of_alone": row["tokens_per_second"] / alone[streams]["tokens_per_second"],
                   "step_ms": 1e3 * busy, "times_idle_step": busy / idle}


def with_a_draft(options, network):
    """A model and a small one that guesses for it, on peers that compute, over the emulated links."""
    model, small = (os.path.abspath(path) for path in options.guessed)
    with Cluster() as cluster:
        cluster.start_over(network, "cpu:1", options.links)
        for draft in ("none", "ngram", small):
            cluster.serve(write_job(cluster, STAGES, 1, model, draft))
            for temperature in (0, 0.8):
                yield {"row": "guessed", "network": network.name, "draft": os.path.basename(draft), "temperature": temperature,
                       **guessed(cluster.door, 110, 3 * options.turns, temperature)}
            cluster.stop_serving()


def compared(options):
    """Peers that compute, on loopback, beside one machine."""
    counts = [n for n in options.streams if n in (1, 16)] or [1]
    with Cluster() as cluster:
        alone = cluster.start("serve", "serve", f"{ROOT}/examples/gpt/model.onnx", "--http", "127.0.0.1:0", "--threads", "1",
                              "--name", "gpt", "--chat-template", "plain", stdout=subprocess.PIPE)
        door, = cluster.lines_of(alone, [r"http://([^/\s]+)/v1"])
        for streams in counts:
            yield {"row": "weft serve", "streams": streams, **medians(door, streams, options.tokens, options.turns)}
    for stages in options.stages:
        with Cluster() as cluster:
            cluster.start_broker("--links", "assume")
            for index in range(stages):
                cluster.start_peer(f"p{index}", "--device", "cpu:1")
            cluster.wait_for_peers(stages, False)
            cluster.serve(write_job(cluster, stages, max(counts)))
            for streams in counts:
                yield {"row": f"{stages} stages", "streams": streams,
                       **medians(cluster.door, streams, options.tokens, options.turns)}


def show(row):
    text = f"{row['row']:<17}"
    if "network" in row:
        text += f" {row['network']:>9}"
    if "computing_ms" in row:
        text += f"  C {row['computing_ms']:.2f} ms, L {row['latency_ms']:.0f} ms:"
    if "streams" in row:
        text += f" {row['streams']:>3}: {row['token_ms']:.2f} ms a token, first after {row['first_token_ms']:.0f} ms,"
    if row["row"] == "draft":
        return text + (f" {row['tokens_per_second']:.2f} tokens/s with {row['right']:g} right, {row['acceptance']:.3f} measured: "
                       f"{row['of_bound']:.3f} of the bound {row['bound']:.1f}, {row['times_client']:.1f} times by way of the client")
    if row["row"] == "guessed":
        return text + (f" {row['tokens_per_second']:.2f} tokens/s, guesses by {row['draft']}, temperature {row['temperature']}: "
                       f"{row['acceptance']:.3f} of the tokens")
    if row["row"] == "beside":
        return text + (f" {row['tokens_per_second']:.2f} tokens/s, {row['of_alone']:.2f} of alone; a step of the training "
                       f"{row['step_ms']:.0f} ms, {row['times_idle_step']:.2f} times one without streams")
    if "predicted_ms" in row:
        return text + f" first token after {row['first_token_ms']:.0f} ms, predicted {row['predicted_ms']:.0f} ms"
    text += f" {row['tokens_per_second']:.2f} tokens/s"
    if row.get("streams") == 1:
        text += f" (best turn {row['best_tokens_per_second']:.2f})"
    if "predicted" in row:
        text += f", predicted {row['predicted']:.2f}"
    if "of_bound" in row:
        text += f", {row['of_bound']:.3f} of the bound"
    return text + (f", {row['of_stage']:.2f} of the stage" if "of_stage" in row else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--round-trips", type=float, nargs="+", default=[40, 100], metavar="MS")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rate", default="20Mbit")
    parser.add_argument("--network", metavar="FILE", help="regions, round_trip_ms and bandwidth_gbit_per_s: a peer in each")
    parser.add_argument("--slower", type=int, default=15, help="times as slow as an RTX 3080")
    parser.add_argument("--links", choices=("measure", "assume"), default="measure")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="of --real")
    parser.add_argument("--drafts", type=float, nargs="*", default=[0.8, 0.9], metavar="ACCEPTANCE")
    parser.add_argument("--guessed", nargs=2, metavar=("MODEL", "DRAFT"))
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.round_trips, options.streams, options.tokens, options.turns = [2], [1, 16] if options.real else [1, 4], 4, 1
        options.links, options.drafts = "assume", [0.8]
        if options.beside:
            options.streams, options.rate = [1], "1Gbit"
    networks = [Regions(options.network)] if options.network else [Equal(each, options.rate) for each in options.round_trips]
    if options.beside:
        rows = [beside_a_training(options, each) for each in networks]
    elif options.guessed:
        rows = [with_a_draft(options, each) for each in networks]
    else:
        rows = [compared(options)] if options.real else [wide_area(options, each) for each in networks]
    for group in rows:
        for row in group:
            print(json.dumps(row) if options.format == "json" else show(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
