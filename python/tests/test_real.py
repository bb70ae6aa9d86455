"""The real program, from Python, without PyTorch: runs on this machine, jobs of a broker, plans and a served model."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import unittest
import urllib.request

from support import DOC_DATA, PATIENCE, REAL, ROOT, Case, is_alive, needs_numpy, weft
from weft import program

JOB = """\
model: model.onnx
task: train
inputs: {x: image}
loss: {type: cross_entropy, logits: logits, labels: label}
data: {train: {type: npz, path: train.npz}}
batch_size: 32
microbatch_size: 16
steps: 6
optimizer: {type: adamw, learning_rate: 1e-3}
"""


class Real(Case):
    def setUp(self):
        super().setUp()
        shutil.copy(os.path.join(ROOT, "examples/fashion-mnist/model.onnx"), self.folder)
        subprocess.run([DOC_DATA, self.file("train.npz"), "256"], check=True)
        self.job = self.write("job.yaml", JOB)


class Local(Real):
    def test_a_run(self):
        with weft.local(self.job, threads=1, steps=4) as run:
            kinds = [event.kind for event in run.events()]
            self.assertEqual(kinds, ["start"] + ["step"] * 4 + ["result"])
            self.assertEqual([event.step for event in run.events() if event.kind == "step"], [1, 2, 3, 4])  # again
            self.assertEqual(run.wait().status, "completed")
            run.fetch(self.file("mine.onnx"))
        self.assertEqual(self.left_behind(), [])
        self.assertTrue(list(weft.weights.read_initializers(self.file("mine.onnx"))))

    @needs_numpy
    def test_its_weights(self):
        with weft.local(self.job, threads=1, steps=1) as run:
            trained = run.weights()
        before = weft.read_arrays(self.file("model.onnx"))
        self.assertEqual(set(trained), set(before))
        self.assertTrue(any((trained[name] != before[name]).any() for name in before))

    def test_an_error_of_the_job(self):
        with self.raises(weft.InvalidArgument, "batch_sise"):
            with weft.local(self.job, more={"batch_sise": 3}) as run:
                run.wait()
        with self.raises(weft.NotFound, "gone.npz"):
            with weft.local(self.job, more={"data.train.path": "gone.npz"}) as run:
                list(run.events())
        self.assertEqual(self.left_behind(), [])

    def test_a_divergence(self):
        with self.raises(weft.Diverged, "not finite"):
            with weft.local(self.job, threads=1, more={"optimizer": {"type": "sgd", "learning_rate": 1e30}}) as run:
                run.wait()

    def test_stop_and_resume(self):
        with weft.local(self.job, threads=1, steps=100000) as run:
            events = run.events()
            while next(events).kind != "step":
                pass
            stopped = run.stop()
            self.assertEqual(stopped.status, "stopped")
            with self.raises(weft.Error, "resume() goes on"):
                run.load_into(None)
            run._prepared.sets[-1] = f"steps={stopped.steps + 2}"
            run.resume()
            steps = [event.step for event in run.events() if event.kind == "step"]
            self.assertEqual(steps, [stopped.steps + 1, stopped.steps + 2])
        self.assertEqual(self.left_behind(), [])

    def test_another_run_goes_on_where_one_was_stopped(self):
        terms = {"inputs": {"x": "image"}, "loss": "cross_entropy", "batch_size": 32, "threads": 1,
                 "directory": self.file("job")}
        with weft.local(self.file("model.onnx"), self.file("train.npz"), steps=1000000, **terms) as run:
            next(event for event in run.events() if event.kind == "step")
            stopped = run.stop()
        with weft.local(self.file("model.onnx"), self.file("train.npz"), steps=stopped.steps + 1, resume="auto",
                        **terms) as run:
            self.assertEqual([event.step for event in run.events() if event.kind == "step"], [stopped.steps + 1])

    def test_a_run_ends_with_its_object(self):
        run = weft.local(self.job, threads=1, steps=1000000)
        events = run.events()
        while next(events).kind != "step":
            pass
        pid = run._process.process.pid
        self.assertTrue(is_alive(pid))
        with self.raises(weft.InvalidArgument, "nothing to resume"):
            run.resume()
        events.close()
        del run, events
        self.assertFalse(is_alive(pid))
        self.assertEqual(self.left_behind(), [])
        with weft.local(self.job, threads=1, steps=1) as run:
            run.wait()
        with self.raises(weft.InvalidArgument, "the run was closed"):
            run.wait()

    def test_a_job_of_an_onnx_file_and_data_in_files(self):
        with weft.local(self.file("model.onnx"), self.file("train.npz"), inputs={"x": "image"}, loss="cross_entropy",
                        batch_size=32, steps=2, threads=1, directory=self.file("job")) as run:
            self.assertEqual(run.wait().status, "completed")
        with open(self.file("job/job.yaml"), encoding="utf-8") as file:
            job = json.loads("".join(line for line in file if not line.startswith("#")))
        self.assertEqual(job["loss"], {"type": "cross_entropy", "logits": "logits", "labels": "label"})
        self.assertTrue(os.path.exists(self.file("job/trained.onnx")))

    def test_an_interrupt_saves_a_checkpoint(self):
        script = self.write("script.py", textwrap.dedent("""\
            import sys
            sys.path.insert(0, sys.argv[1])
            import weft
            run = weft.local(sys.argv[2], steps=1000000, threads=1)
            try:
                for e in run.events():
                    if e.step == 2:
                        print("ready", flush=True)
            except KeyboardInterrupt:
                run._prepared.sets[-1] = "steps=%d" % (int(run.wait().steps) + 1)
                run.resume()
                print(run.wait().status)
            """))
        process = subprocess.Popen([sys.executable, script, os.path.join(ROOT, "python"), self.job],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("resume() goes on from there", err)
        self.assertEqual(out, "completed\n")
        self.assertEqual(self.left_behind(), [])


class Plans(Real):
    def test_a_plan(self):
        plan = weft.plan(self.job, cluster=os.path.join(ROOT, "examples/plans/scattered-48.yaml"))
        self.assertEqual(plan.kind, "plan")
        self.assertGreater(len(plan.stages), 0)

    def test_a_cluster_that_is_not_there(self):
        with self.raises(weft.NotFound, "none.yaml"):
            weft.plan(self.job, cluster=self.file("none.yaml"))


class Served(Real):
    def test_it_answers_until_it_ends(self):
        gpt = os.path.join(ROOT, "examples/gpt/model.onnx")
        with weft.serve(gpt, name="gpt", threads=1) as server:
            question = json.dumps({"model": server.model, "prompt": "Once", "max_tokens": 4}).encode()
            request = urllib.request.Request(server.url + "/completions", question, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.assertEqual(json.load(answer)["usage"]["completion_tokens"], 4)
        with self.raises(weft.Error, "broken.onnx"):
            weft.serve(self.write("broken.onnx", "not a model"))


class Broker(Real):
    """A broker and two peers of this test."""

    def setUp(self):
        super().setUp()
        self.processes = []
        self.addCleanup(self.end_processes)
        broker = self.start("broker", "--data-dir", self.file("broker"), "--listen", "127.0.0.1:0",
                            "--links", "assume", "--plan-seconds", "600")
        self.address = self.token = None
        while not (self.address and self.token):
            words = broker.stdout.readline().split()
            self.assertTrue(words, "the broker did not start")
            if words[:2] == ["weft", "join"]:
                self.address, peer_token = words[2], words[4]
            elif words[:2] == ["submitter", "token:"]:
                self.token = words[2]
        for name in ("left", "right"):
            self.start("join", self.address, "--token", peer_token, "--name", name, "--data-dir", self.file(name),
                       "--device", "cpu:1", "--memory", "1GiB")

    def start(self, *arguments):
        with open(self.file("text.log"), "ab") as log:
            process = subprocess.Popen([REAL, *arguments], stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes.append(process)
        return process

    def end_processes(self):
        while self.processes:
            process = self.processes.pop()
            process.terminate()  # the broker ends what plans for it
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
                process.wait()
                process.stdout.close()

    def tearDown(self):
        self.end_processes()
        super().tearDown()

    def test_jobs(self):  # with one broker: its peers take seconds to begin
        self.a_job_from_its_submission_to_its_weights()
        self.a_job_is_stopped_and_goes_on()
        self.what_a_submission_says()
        self.what_a_broker_refuses()

    def a_job_from_its_submission_to_its_weights(self):
        job = weft.submit(self.job, stages=2, broker=self.address, token=self.token)
        events = list(job.events(timeout=PATIENCE))
        steps = [event for event in events if event.kind == "step"]
        self.assertEqual([event.step for event in steps], list(range(1, 7)))
        self.assertEqual(events[-1].status, "completed")
        self.assertEqual(len(next(event for event in events if event.kind == "plan").stages), 2)
        again = weft.job(job.number, broker=self.address, token=self.token)
        self.assertEqual(again.wait(timeout=PATIENCE).steps, 6)
        self.assertEqual((again.status().state, again.status().step), ("finished", 6))
        self.assertEqual([listed.job for listed in weft.jobs(broker=self.address, token=self.token)], [job.number])
        # The same weights as on this machine, byte for byte.
        job.fetch(self.file("fetched.onnx"))
        with weft.local(self.job, threads=1) as run:
            run.fetch(self.file("local.onnx"))
        with open(self.file("fetched.onnx"), "rb") as ours, open(self.file("local.onnx"), "rb") as theirs:
            self.assertEqual(ours.read(), theirs.read())

    def until_a_step_after(self, job, step):
        for event in job.events(timeout=PATIENCE):
            if event.kind == "step" and event.step > step:
                return event.step
        self.fail("the job has ended")

    def a_job_is_stopped_and_goes_on(self):
        job = weft.submit(self.job, steps=1000000, broker=self.address, token=self.token)
        self.until_a_step_after(job, 2)
        job.stop()
        stopped = job.wait(timeout=PATIENCE)
        self.assertEqual(stopped.status, "stopped")
        job.resume()
        self.until_a_step_after(job, stopped.steps)
        job.stop()
        self.assertGreater(job.wait(timeout=PATIENCE).steps, stopped.steps)

    def what_a_submission_says(self):
        said = program.ask(["submit", self.job, "--detach", "--format", "json"],
                           program.broker_environment(self.address, self.token))
        self.assertEqual([event.kind for event in said], ["submitted", "start"])
        self.assertEqual((said[1].steps, said[1].warnings), (6, []))
        weft.job(said[0].job, broker=self.address, token=self.token).wait(timeout=PATIENCE)

    def what_a_broker_refuses(self):
        with self.raises(weft.NotFound, "999"):
            weft.job(999, broker=self.address, token=self.token).status()
        with self.raises(weft.InvalidArgument, "token"):
            weft.submit(self.job, broker=self.address, token="weft1-nonsense")
        self.assertEqual(self.left_behind(), [])


if __name__ == "__main__":
    unittest.main()
