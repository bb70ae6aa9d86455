#!/usr/bin/python3
"""Texts go on while who computes them is killed: the longest gap between two of a text's pieces, by kill.

    tests/e2e/serve_kills.py [--quick] [--kills N] [--pair-kills N] [--broker-kills N] [--streams N] [--seed N]
                             [--round-trip MS] [--others N] [--beside N] [--tell-above S]

Three stages of the example GPT and spares on emulated links, each a process. Again and again all streams are begun.
Once each has had some pieces the peer of a stage is killed (SIGKILL), of each stage in turn, the entry's too. The next
kill is when somebody stands by again. Then peers of two stages are killed, up to 0.2 s apart: while others take the
place of the first one, or just behind. Then the broker is killed in the same way and started on the same ports. There
a stream that broke is asked for again, behind the last event that came. A text has to be, byte for byte, the one that
nobody disturbed. No stream may end early, and where peers are killed none may break.

What is printed are the longest gaps at the client that end behind a kill: of all streams, and of each kill its longest.
Nothing is asserted of them.

  --round-trip   of the emulated links; 0: loopback as it is
  --others       requests beside the streams, each followed by another one
  --beside       processes that compute without end
  --tell-above   of a kill with a longer gap: what broker and peers said meanwhile, and what they had of the cores
"""
import argparse
import glob
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from serve_ring import DEADLINE, WEFT, Cluster, write_job  # noqa: E402

STAGES = 3
PROMPT = "Once upon"
TOKENS = 110  # of 128 positions
SPARES = 2
APART = 0.2  # seconds, at most, of peers that are killed together
BEGUN = (4, 40)  # pieces that every stream has had when somebody is killed, drawn
ON_THE_WAY = 4
AGAIN = 0.01  # seconds until a broker that is not there is asked again


def fail(text):
    raise SystemExit("serve_kills: " + text)


class Ended(Exception):
    """A stream ended as none may."""


class NotYet(Ended):
    """The broker is there, and does not know yet where its streams are computed."""


class Text(threading.Thread):
    """A stream, and when each of its pieces came. One that `resumes` is asked for again when it breaks."""

    def __init__(self, door, seed, resumes):
        super().__init__(daemon=True)
        self.door, self.seed, self.resumes = door, seed, resumes
        self.times, self.text = [], ""
        self.request, self.last = None, 0  # the stream's name, the last event's number
        self.is_done, self.breaks, self.error = False, 0, None
        self.overdue = time.monotonic() + DEADLINE
        self.start()

    def run(self):
        try:
            while not self.is_done:
                self.follow()
        except (Ended, OSError, ValueError, http.client.HTTPException) as error:
            self.error = f"seed {self.seed}, after {len(self.times)} pieces: {error!r}"

    def follow(self):
        connection = http.client.HTTPConnection(self.door, timeout=DEADLINE)
        try:
            self.read(self.asked(connection))
            if not self.is_done:
                raise Ended("the stream was closed")
        except (Ended, OSError, http.client.HTTPException) as error:
            if not self.resumes or self.request is None or time.monotonic() > self.overdue:
                raise
            self.breaks += not isinstance(error, (NotYet, ConnectionRefusedError))
            time.sleep(AGAIN)
        finally:
            connection.close()

    def asked(self, connection):
        if self.request is None:
            body = {"model": "gpt", "prompt": PROMPT, "max_tokens": TOKENS, "seed": self.seed, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        else:
            connection.request("GET", f"/v1/streams/{self.request}",
                               headers={"Last-Event-ID": f"{self.request}-{self.last}"})
        answer = connection.getresponse()
        if answer.status == 503 and self.request is not None:
            raise NotYet(answer.read().decode())
        if answer.status != 200:
            raise ValueError(f"the door says {answer.status}: {answer.read().decode()}")
        return answer

    def read(self, answer):
        while line := answer.readline():
            if line.startswith(b"id: "):
                self.take_id(line[4:].decode().strip())
            elif line.startswith(b"data: [DONE]"):
                self.is_done = True
            elif line.startswith(b"data: "):
                self.take(json.loads(line[6:]))

    def take_id(self, event):
        request, number = event.rsplit("-", 1)
        if request != (self.request or request) or int(number) != self.last + 1:
            raise ValueError(f"event {event} behind {self.request}-{self.last}")
        self.request, self.last = request, int(number)

    def take(self, event):
        if "error" in event:
            raise ValueError(f"it ends with {event['error']}")
        self.text += event["choices"][0]["text"]
        self.times.append(time.monotonic())

    def has_had(self, pieces):
        return len(self.times) >= pieces or not self.is_alive()

    def goes_on(self, since):
        """Pieces may have been on their way at that moment."""
        return self.times[-ON_THE_WAY] > since or not self.is_alive()

    def gap(self, since):
        """The longest of those that end behind the moment."""
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:]) if later > since)


class Others:
    """Requests beside the streams that are looked at. That of a broker which is killed before the text begins fails."""

    def __init__(self, door, count):
        self.door, self.is_over, self.asked = door, False, 0
        self.threads = [threading.Thread(target=self.ask, args=(number,), daemon=True) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def ask(self, number):
        seed = 10000 * (number + 1)
        while not self.is_over:
            text = Text(self.door, seed, resumes=True)
            text.join()
            if text.error:
                time.sleep(AGAIN)
            seed += 1
            self.asked += 1

    def end(self):
        self.is_over = True
        for thread in self.threads:
            thread.join()
        if self.threads:
            print(f"beside them {self.asked} others")


class Ring(Cluster):
    """The cluster, whose processes can be killed by name; all that they say is kept with its time."""

    def __init__(self, options):
        super().__init__()
        self.named, self.said = {}, []
        self.emulated = []
        if options.round_trip:
            self.emulated = ["--emulate", self.write_lines(options.round_trip), "--region", "here", "--as", "line"]

    def __exit__(self, *error):
        if error[0] and os.environ.get("KEEP"):
            print(f"kept: {shutil.copytree(self.folder, self.folder + '.kept')}", file=sys.stderr)
        super().__exit__(*error)

    def write_lines(self, round_trip):
        path = self.path("lines.yaml")
        with open(path, "w") as file:
            file.write("devices: [{name: line, type: rtx3080, region: here}]\nbroker: here\n"
                       f"regions: {{within: {{round_trip_ms: {round_trip:g}, bandwidth: 1Gbit}}}}\n")
        return path

    def start(self, name, *arguments, **options):
        process = subprocess.Popen([WEFT, *arguments], stderr=subprocess.PIPE, env=self.environment, text=True,
                                   errors="replace", **options)
        self.processes.append(process)
        self.named[name] = process
        threading.Thread(target=self.listen, args=(name, process.stderr), daemon=True).start()
        return process

    def listen(self, name, stderr):
        with open(self.path(name + ".log"), "a") as log:
            for line in stderr:
                self.said.append((time.monotonic(), name, line.rstrip()))
                print(line, end="", file=log, flush=True)

    def begin(self, peers, sequences):
        self.start_broker("--lease", "3s")
        for name in peers:
            self.add(name)
        self.wait_for_peers(len(peers), False)
        self.serve(write_job(self, STAGES, sequences))

    def add(self, name):
        self.start_peer(name, "--device", "cpu:1", *self.emulated)

    def kill(self, name):
        process = self.named.pop(name)
        self.processes.remove(process)
        process.kill()
        process.wait()

    def start_broker_again(self):
        broker = self.start("broker", "broker", "--data-dir", self.path("broker"), "--listen", self.address, "--http",
                            self.door, "--lease", "3s", stdout=subprocess.PIPE)
        self.lines_of(broker, [r"served models: http://([^/\s]+)"])

    def peer_of(self, stage):
        found = re.search(rf"^stage {stage} +(\S+)", self.weft("status", "1"), re.MULTILINE)
        return found and found[1]

    def wait_for_spares(self, count):
        def stand_by():
            return sum(peer.get("state") == "pool" for peer in self.events("peers")) >= count

        self.until("too few stand by", stand_by)
        self.until("a stage has no peer", lambda: all(self.peer_of(stage + 1) for stage in range(STAGES)))

    def cores(self):
        """Of each thread, by its process: seconds that it computed, and that it was ready to and had no core."""
        used = {}
        for name, process in list(self.named.items()):
            for schedule in glob.glob(f"/proc/{process.pid}/task/*/schedstat"):
                try:
                    with open(schedule) as file:
                        used[name, schedule] = [int(each) / 1e9 for each in file.read().split()[:2]]
                except OSError:
                    pass  # it has ended meanwhile
        return used

    def told(self, since, until):
        return [f"    {at - since:6.3f} {name}: {line}" for at, name, line in list(self.said) if since <= at <= until]


def of_cores(before, after):
    """Of each process its busiest thread, as a line."""
    by_process = {}
    for key, used in after.items():
        by_process.setdefault(key[0], []).append([now - then for now, then in zip(used, before.get(key, (0, 0)))])
    for name, threads in sorted(by_process.items()):
        computed, waited = max(threads, key=sum)
        yield f"    {name}: the busiest thread computed for {computed:.3f} s and waited for a core for {waited:.3f} s"


def check(texts, wanted, what):
    for text in texts:
        if text.error:
            fail(f"{what}: {text.error}")
        if text.text != wanted.get(text.seed, text.text):
            fail(f"{what}: seed {text.seed} has another text: {text.text!r} instead of {wanted[text.seed]!r}")


def wait_until(what, is_so):
    overdue = time.monotonic() + DEADLINE
    while not is_so():
        if time.monotonic() > overdue:
            fail(f"{what} after {DEADLINE} s")
        time.sleep(0.001)


class Kills:
    """Streams that are all under way when somebody is killed."""

    def __init__(self, ring, options):
        self.ring, self.options, self.wanted = ring, options, {}
        self.random = random.Random(options.seed)

    def begin(self, resumes=False):
        return [Text(self.ring.door, seed, resumes) for seed in range(self.options.streams)]

    def end(self, texts, what):
        for text in texts:
            text.join()
        check(texts, self.wanted, what)

    def undisturbed(self):
        texts = self.begin()
        self.end(texts, "undisturbed")
        self.wanted = {text.seed: text.text for text in texts}
        print(f"undisturbed: {len(texts)} streams, gaps {summary([text.gap(0) for text in texts])}", flush=True)

    def peers(self):
        for number in range(self.options.kills):
            self.ring.wait_for_spares(1)
            stage = number % STAGES + 1
            victim = self.ring.peer_of(stage)
            yield self.amid(f"kill {number + 1}: stage {stage}, {victim}", lambda: self.ring.kill(victim), False)
            self.ring.add(victim)

    def pairs(self):
        for number in range(self.options.pair_kills):
            self.ring.wait_for_spares(2)
            stages = [number % STAGES + 1, (number + 1) % STAGES + 1]
            victims = [self.ring.peer_of(stage) for stage in stages]
            apart = self.random.uniform(0, APART)

            def kill():
                self.ring.kill(victims[0])
                time.sleep(apart)
                self.ring.kill(victims[1])

            what = f"kill {number + 1}: stages {stages[0]} and {stages[1]}, {' and '.join(victims)}, {apart:.3f} s apart"
            yield self.amid(what, kill, False)
            for victim in victims:
                self.ring.add(victim)

    def brokers(self):
        def kill():
            self.ring.kill("broker")
            self.ring.start_broker_again()

        for number in range(self.options.broker_kills):
            yield self.amid(f"kill {number + 1}: the broker", kill, True)

    def amid(self, what, kill, resumes):
        """The gap of each stream."""
        texts = self.begin(resumes)
        begun = self.random.randint(*BEGUN)
        wait_until(f"{what}: a text has not begun", lambda: all(text.has_had(begun) for text in texts))
        if not all(text.is_alive() for text in texts):
            check(texts, self.wanted, what)
            fail(f"{what}: a text has ended before the kill")
        killed, before = time.monotonic(), self.ring.cores()
        kill()
        wait_until(f"{what}: a text does not go on", lambda: all(text.goes_on(killed) for text in texts))
        came, after = time.monotonic(), self.ring.cores()
        self.end(texts, what)
        if resumes and not all(text.breaks for text in texts):
            fail(f"{what}: a stream did not break")
        gaps = [text.gap(killed) for text in texts]
        print(f"{what}, after {begun} pieces: gaps of {min(gaps):.3f} to {max(gaps):.3f} s", flush=True)
        if max(gaps) > self.options.tell_above:
            print(f"    {came - killed:.3f} s behind the kill all go on; meanwhile:")
            print("\n".join([*self.ring.told(killed, came), *of_cores(before, after)]), flush=True)
        return gaps


def summary(values):
    values = sorted(values)
    return (f"median {values[(len(values) - 1) // 2]:.2f} s, p95 {values[-(-len(values) * 95 // 100) - 1]:.2f} s, "
            f"max {values[-1]:.2f} s")


def report(whose, kills):
    gaps = [gap for each in kills for gap in each]
    if gaps:
        print(f"{whose} killed {len(kills)} times: gaps of {len(gaps)} streams {summary(gaps)}")
        print(f"{whose} killed {len(kills)} times: longest gap of each kill {summary([max(each) for each in kills])}")
        print(f"ok: {len(gaps)} texts as undisturbed, none ended early", flush=True)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pair-kills", type=int, default=20)
    parser.add_argument("--broker-kills", type=int, default=50)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--round-trip", type=float, default=8, metavar="MS")
    parser.add_argument("--others", type=int, default=0, metavar="N")
    parser.add_argument("--beside", type=int, default=0, metavar="N")
    parser.add_argument("--tell-above", type=float, default=float("inf"), metavar="S")
    options = parser.parse_args()
    if options.quick:
        options.kills, options.pair_kills, options.broker_kills = 0, 1, 1  # nobody has to come back
        options.round_trip = 4
    return options


def main():
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and the processes end with it
    print(f"seed {options.seed}", flush=True)
    with Ring(options) as ring:
        ring.begin([f"p{number + 1}" for number in range(STAGES + SPARES)], options.streams + options.others)
        ring.processes += [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(options.beside)]
        kills = Kills(ring, options)
        kills.undisturbed()
        others = Others(ring.door, options.others)
        report("peers", list(kills.peers()))
        report("two peers together", list(kills.pairs()))
        report("the broker", list(kills.brokers()))
        others.end()


if __name__ == "__main__":
    sys.exit(main())
