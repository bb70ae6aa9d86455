"""What tests/e2e/ui.sh asks of the page, in a browser. Names and numbers come by the environment."""
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(__file__))
from browser import Browser, Page  # noqa: E402

ENV = os.environ
SLOWER = int(ENV["SLOWER"])
SIZES = [("desktop", 1280, 800), ("phone", 390, 844)]
LIVE = "document.getElementById('link').textContent === 'live'"


def check(is_so, what, *said):
    if not is_so:
        raise SystemExit("FAILED: " + " ".join(str(one) for one in (what, *said)))
    print("ok: " + what, flush=True)


def weft(*arguments):
    done = subprocess.run([ENV["WEFT"], *arguments, "--format", "json"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def steps_in_the_log():
    return {event["step"]: event["loss"] for event in weft("logs", ENV["JOB"]) if event["event"] == "step"}


def shows_what_the_log_says(page):
    page.wait("the curves", "Number(document.getElementById('figures').dataset.step) > 30")
    step, text = page.run("""(() => {
      const box = document.getElementById('figures');
      const loss = [...box.children].find((one) => one.dataset.key === 'loss');
      return [Number(box.dataset.step), loss.querySelector('b').textContent];
    })()""")
    logged = steps_in_the_log()
    check(text == f"{logged[step]:.4f}", f"the page shows the loss that weft logs has of step {step}", text, logged[step])
    curves = page.run(f"fetch('/api/state?job={ENV['JOB']}').then((answer) => answer.json())")["job"]["curves"]
    logged = steps_in_the_log()
    wrong = [at for at, loss in zip(curves["step"], curves["loss"]) if logged[at] != loss]
    check(not wrong and len(curves["step"]) > 30, f"all of the curve is: {len(curves['step'])} points", wrong[:5])
    page.wait("a test's accuracy", "document.querySelector('#score canvas') && !document.getElementById('score-figure').hidden")
    check(page.run("document.querySelectorAll('#loss canvas, #rate canvas').length") == 2, "loss, accuracy and samples/s are drawn")


def shows_the_pipeline(page):
    page.wait("two stages that work", "document.querySelectorAll('#pipeline > li').length === 2 && /smaller/.test(document.getElementById('pipeline').innerText)")
    text = page.run("document.getElementById('pipeline').innerText")
    check("KiB a step" in text and "busy" in text and "int8: " in text, "stages show their links' bytes, codec and waiting", text)
    check(page.run("document.querySelectorAll('#peers > li').length") == 3, "three peers are listed")
    check("<b>mika</b>" in page.run("document.getElementById('peers').innerText") and page.run("document.querySelectorAll('#peers b').length") == 0,
          "what a peer calls itself is text and no markup")
    page.wait("links between peers", "document.querySelectorAll('#links tbody tr').length === 3")


def fits(page):
    for name, width, height in SIZES:
        for scheme in ("light", "dark"):
            page.look_as(width, height, scheme)
            page.wait("it is drawn anew", f"document.querySelector('#loss canvas').clientWidth <= {width}")
            wide = page.run("""(() => {
              const most = document.documentElement.clientWidth;
              const over = [...document.querySelectorAll('body *')].filter((one) => one.offsetParent !== null &&
                  (one.getBoundingClientRect().right > most + 1 || (one.matches('.scroll') && one.scrollWidth > one.clientWidth)));
              return [document.documentElement.scrollWidth - most, over.slice(0, 3).map((one) => one.outerHTML.slice(0, 200))];
            })()""")
            check(wide == [0, []], f"nothing scrolls sideways: {width}x{height}, {scheme}", wide)


def marks_a_killed_peer(page):
    peers = dict(entry.rsplit("=", 1) for entry in ENV["PEERS"].split(","))
    name = page.run("document.querySelector('#pipeline > li .who').textContent").split(", ")[0]
    os.kill(int(peers[name]), signal.SIGKILL)
    took = page.wait(f"{name}, which was killed, is marked", f"""[...document.querySelectorAll('#peers > li')].some((one) =>
        one.querySelector('.name').textContent === {json.dumps(name)} &&
        ['gone', 'suspect'].includes(one.querySelector('.pill').textContent))""", 3 * SLOWER)
    check(True, f"a peer that was killed is marked within {took:.1f} s")
    page.wait("the job goes on without it", f"""document.getElementById('job-state').textContent === 'running' &&
        document.querySelectorAll('#pipeline > li').length === 2 && !document.getElementById('pipeline').innerText.includes({json.dumps(name)})""")
    page.wait("what happened is told", f"document.getElementById('lines').innerText.includes({json.dumps(name)})")
    check(page.run("!document.getElementById('changes-box').hidden"), "who came and went is listed")


def ask(url, path, method="GET", body=None, **headers):
    at = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def refuses_others():
    page, locked = ENV["OPEN_PAGE"], ENV["LOCKED_PAGE"]
    own = urllib.parse.urlsplit(page).netloc
    stop = dict(method="POST", body=json.dumps({"job": int(ENV["JOB"])}), Content_Type="application/json")
    check(ask(page, "/api/state")[0] == 200, "the page answers to its own name")
    check(ask(page, "/api/state", Host="evil.example")[0] == 403 and ask(page, "/", Host="evil.example:80")[0] == 403, "another Host is 403")
    check(ask(page, "/api/stop", **stop)[0] == 403 and ask(page, "/api/stop", Origin="http://evil.example", **stop)[0] == 403,
          "a POST without its Origin is 403")
    origin = "http://" + urllib.parse.urlsplit(locked).netloc
    wrong = ask(locked, "/api/session", method="POST", body='{"key": "0123456789abcdef"}', Content_Type="application/json", Origin=origin)
    check(wrong[0] == 403 and ask(locked, "/api/state")[0] == 403, "without the key, or with a wrong one, it is 403", wrong)
    check(own != urllib.parse.urlsplit(locked).netloc, "two pages can be open at once")


def opens_with_its_key(browser):
    page, locked = Page(browser), ENV["LOCKED_PAGE"]
    page.open(locked.split("#")[0])
    page.wait("it asks for the key", "!document.getElementById('door').hidden")
    page.open(locked)
    page.wait("its key is in the address", "location.hash.length > 1")
    page.say("Page.reload")  # the fragment alone is no other page
    page.wait("the key opens it", LIVE)
    check(page.run("location.hash") == "" and page.run("document.cookie") == "", "the key leaves the address, and no script sees the cookie")
    page.open(locked.split("#")[0])
    page.wait("the cookie opens it", LIVE)
    page.say("Page.close")


def tries_a_model(page):
    page.wait("the form", "document.getElementById('try-model').options.length > 0")
    page.run("document.getElementById('try-go').click()")
    page.wait("the answer", "document.getElementById('try-text').innerText.length > 20 && document.getElementById('try-go').textContent === 'Ask'")
    check(page.run("document.getElementById('try-says').textContent") == "", "a served model is tried from the page",
          page.run("document.getElementById('try-text').innerText"))


def press_twice(page, button):
    page.wait(button, f"!document.getElementById('{button}').hidden")
    page.run(f"document.getElementById('{button}').click()")
    page.wait("it asks once more", f"document.getElementById('{button}').classList.contains('sure')")
    page.run(f"document.getElementById('{button}').click()")


def stops_and_resumes(page):
    press_twice(page, "job-stop")
    page.wait("the job stops", "document.getElementById('job-state').textContent === 'stopped'")
    check(weft("status", ENV["JOB"])[0]["state"] == "stopped", "Stop, pressed twice, stops the job")
    press_twice(page, "job-resume")
    page.wait("the job goes on", "document.getElementById('job-state').textContent === 'running'")
    check(True, "Resume lets it go on")


def says_that_the_broker_is_away(page):
    os.kill(int(ENV["BROKER_PID"]), signal.SIGSTOP)
    page.wait("it says that the broker is away", "document.getElementById('link').textContent === 'broker away' && !document.getElementById('banner').hidden")
    os.kill(int(ENV["BROKER_PID"]), signal.SIGCONT)
    page.wait("it comes back by itself", LIVE)
    check(True, "a broker that does not answer is said, and the page comes back by itself")


def stays_here(page):
    others = [url for url in page.requests() if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
    check(not others and page.requests(), "no request leaves 127.0.0.1", others)
    check(not page.complaints(), "no script fails, and none is kept from anything", page.complaints())


def seconds_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def costs_little(page, minutes):
    """The job has ended: what the broker's process still computes, the page asks of it."""
    press_twice(page, "job-stop")
    page.wait("the job stops", "document.getElementById('job-state').textContent === 'stopped'")
    broker, ui = ENV["BROKER_PID"], ENV["UI_PID"]

    def figures():
        page.say("HeapProfiler.collectGarbage")
        return memory_of(broker), memory_of(ui), page.run("performance.memory.usedJSHeapSize") / 2**20

    time.sleep(10)
    before, busy, ui_busy, begun = figures(), seconds_of(broker), seconds_of(ui), time.monotonic()
    time.sleep(60 * minutes)
    took = time.monotonic() - begun
    after, share = figures(), (seconds_of(broker) - busy) / took
    print(f"open for {took / 60:.0f} min: the broker {100 * share:.2f}% of a core, weft ui {100 * (seconds_of(ui) - ui_busy) / took:.2f}%; "
          f"memory in MiB, before and after: broker {before[0]:.1f} {after[0]:.1f}, weft ui {before[1]:.1f} {after[1]:.1f}, page {before[2]:.1f} {after[2]:.1f}")
    check(share < 0.01, "an open page costs the broker less than 1% of a core")
    check(after[0] < before[0] + 8 and after[1] < before[1] + 8 and after[2] < before[2] + 4, "no memory grows")


def make_small(path):
    try:
        from PIL import Image
    except ImportError:
        return print(f"{path} stays large: there is no python3-pil here")
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def take_pictures(page, folder):
    page.wait("some of the job", "Number(document.getElementById('figures').dataset.step) > 250", 1800)
    for name, width, height, scheme in (("page", 1280, 800, "light"), ("page-dark", 1280, 800, "dark"), ("page-phone", 390, 844, "light")):
        page.look_as(width, height, scheme, scale=2 if width < 600 else 1)
        time.sleep(1.5)  # for a person to look at: the next answer is drawn
        page.picture(f"{folder}/{name}.png")
        make_small(f"{folder}/{name}.png")


def main():
    with tempfile.TemporaryDirectory(dir=ENV["WORK"]) as folder:
        browser = Browser(ENV["CHROMIUM"], folder)
        try:
            page = Page(browser)
            page.look_as(1280, 800, "light")
            page.open(ENV["OPEN_PAGE"])
            page.wait("the page is live", LIVE)
            if ENV["PICTURES"]:
                return take_pictures(page, ENV["PICTURES"])
            shows_what_the_log_says(page)
            shows_the_pipeline(page)
            fits(page)
            refuses_others()
            opens_with_its_key(browser)
            tries_a_model(page)
            marks_a_killed_peer(page)
            stops_and_resumes(page)
            says_that_the_broker_is_away(page)
            if float(ENV["MINUTES"]) > 0:
                costs_little(page, float(ENV["MINUTES"]))
            stays_here(page)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
