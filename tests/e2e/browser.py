"""A headless Chromium driven by its DevTools protocol over a pipe: no port, no library, no download."""
import json
import os
import select
import subprocess
import time

PATIENCE = 60 * int(os.environ.get("SLOWER", "1"))  # seconds, which only a hang reaches


class Navigated(SystemExit):
    """The document went away while it was asked."""


class Browser:
    def __init__(self, program, folder):
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()

        def descriptors():  # the protocol is spoken over descriptors 3 and 4
            reading, writing = os.dup(theirs_read), os.dup(theirs_write)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
             "--disable-features=Translate,OptimizationHints,MediaRouter", "--hide-scrollbars", "--password-store=basic",
             f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=descriptors)
        os.close(theirs_read)
        os.close(theirs_write)
        self.reading, self.writing = ours_read, ours_write
        self.bytes, self.number, self.answers, self.events = b"", 0, {}, []

    def close(self):
        self.process.kill()
        self.process.wait()

    def read(self, seconds):
        """One message into its place; False: none came."""
        until = time.monotonic() + seconds
        while b"\0" not in self.bytes:
            ready, _, _ = select.select([self.reading], [], [], max(0, until - time.monotonic()))
            if not ready:
                return False
            more = os.read(self.reading, 1 << 20)
            if not more:
                raise SystemExit("FAILED: the browser has ended")
            self.bytes += more
        text, self.bytes = self.bytes.split(b"\0", 1)
        message = json.loads(text)
        if "id" in message:
            self.answers[message["id"]] = message
        else:
            self.events.append(message)
        return True

    def say(self, method, session=None, patience=PATIENCE, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        number, until = self.number, time.monotonic() + patience
        while number not in self.answers:
            if not self.read(until - time.monotonic()):
                raise SystemExit(f"FAILED: the browser does not answer {method}")
        answer = self.answers.pop(number)
        if "error" in answer:
            if any(word in answer["error"]["message"] for word in ("navigated or closed", "context was destroyed")):
                raise Navigated(f"FAILED: {method}: {answer['error']}")
            raise SystemExit(f"FAILED: {method}: {answer['error']}")
        return answer["result"]


class Page:
    """One tab. What it asks for, what its scripts complain of, and what they say are kept."""

    def __init__(self, browser):
        self.browser = browser
        target = browser.say("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.say("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.say(f"{domain}.enable")

    def say(self, method, patience=PATIENCE, **params):
        return self.browser.say(method, self.session, patience, **params)

    def look_as(self, width, height, scheme, scale=1):
        self.say("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                 mobile=width < 600)
        self.say("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.say("Page.navigate", url=url)

    def run(self, script, patience=PATIENCE):
        """What the expression is; a promise is waited for."""
        answer = self.say("Runtime.evaluate", patience, expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"FAILED: {script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, what, condition, seconds=None):
        """Until the expression is true, looked at as the page is drawn; how long that took."""
        limit = PATIENCE if seconds is None else seconds
        script = f"""new Promise((done) => {{
          const begun = performance.now();
          const look = () => {{
            let is = false;
            try {{ is = Boolean({condition}); }} catch (error) {{ is = false; }}
            if (is) done((performance.now() - begun) / 1000);
            else if (performance.now() - begun > {limit * 1000}) done(-1);
            else setTimeout(look, 20);
          }};
          look();
        }})"""
        until = time.monotonic() + limit
        while True:
            try:
                took = self.run(script, limit + PATIENCE)
                break
            except Navigated:  # the next document is looked at instead
                if time.monotonic() > until:
                    raise
        if took < 0:
            shown = self.run("document.body.innerText.slice(0, 3000)")
            raise SystemExit(f"FAILED: {what}: not within {limit} s. The page:\n{shown}")
        return took

    def picture(self, path):
        import base64
        data = self.say("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))

    def requests(self):
        return [event["params"]["request"]["url"] for event in self.browser.events
                if event["method"] == "Network.requestWillBeSent" and event.get("sessionId") == self.session]

    def complaints(self):
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"].get("exception", {}).get("description", "?"))
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["source"] in ("security", "violation"):
                found.append(event["params"]["entry"]["text"])
        return found
