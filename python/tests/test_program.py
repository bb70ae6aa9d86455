"""Finding the program, running it, and what its errors become: with a weft that is a script of the test's."""

import os
import pickle
import signal
import stat
import subprocess
import sys
import textwrap
import unittest

from support import PATIENCE, REAL, Case, is_alive, weft
from weft import errors, program

STEPS = """\
    say(event="state", job=3, state="running", step=0, reason="")
    for step in range(1, 4):
        say(event="step", job=3, step=step, loss=1.0 / step)
"""


class Finding(Case):
    def test_the_variable_goes_before_the_path(self):
        there = self.fake("say(event='x')")
        self.assertEqual(program.find_program(), there)
        self.set_environment(WEFT=None, PATH=self.folder)
        self.assertEqual(program.find_program(), there)

    def test_none_anywhere(self):
        self.set_environment(WEFT=None, PATH=self.folder)
        with self.raises(weft.NotFound, "install weft"):
            weft.jobs()

    def test_a_variable_that_names_nothing_is_an_error(self):
        self.set_environment(WEFT=self.file("nothing"))
        with self.raises(weft.NotFound, "WEFT is"):
            weft.jobs()

    def test_beside_the_package(self):
        self.set_environment(WEFT=None, PATH=self.folder)
        import shutil
        shutil.copytree(os.path.dirname(weft.__file__), self.file("lib/weft"))
        there = self.write("lib/weft/weft", "")
        os.chmod(there, stat.S_IRWXU)
        said = subprocess.run([sys.executable, "-c", "from weft.program import find_program; print(find_program())"],
                              env={**os.environ, "PYTHONPATH": self.file("lib")}, capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout.strip(), there)

    def test_another_version_is_refused(self):
        self.fake("", version="0.2.0")
        with self.raises(weft.VersionMismatch, "is weft 0.2.0"):
            weft.jobs()
        self.fake("", version="0.1.7")
        self.assertEqual(weft.jobs(), [])

    def test_another_program_of_that_name_is_refused(self):
        path = self.write("weft", "#!/bin/sh\necho weaving\n")
        os.chmod(path, stat.S_IRWXU)
        self.set_environment(WEFT=path)
        with self.raises(weft.VersionMismatch, "another program"):
            weft.jobs()

    def test_the_real_one_is_of_this_version(self):
        self.assertEqual(program.program_version(REAL), weft.__version__)


class Errors(Case):
    def test_each_code_is_a_class(self):
        for code, kind in errors._BY_CODE.items():
            error = errors.make_error("it", code=code, exit_code=kind.exit_code, job=4)
            self.assertIs(type(error), kind)
            self.assertEqual((error.code, error.exit_code, error.job, str(error)), (code, kind.exit_code, 4, "it"))
            self.assertIsInstance(error, weft.Error)
        self.assertTrue(issubclass(weft.InvalidArgument, ValueError))
        self.assertTrue(issubclass(weft.Timeout, TimeoutError))

    def test_a_code_of_later_is_of_the_class_of_its_exit_code(self):
        error = errors.make_error("it", code="Sideways", exit_code=6)
        self.assertIs(type(error), weft.ResourceExhausted)
        self.assertEqual(error.code, "Sideways")
        self.assertIs(type(errors.make_error("it", code="Sideways", exit_code=99)), weft.Error)

    def test_an_error_event_is_raised(self):
        self.fake("""\
            say(event="error", code="PermissionDenied", exit_code=3, message="not with this token", job=8)
            sys.stderr.write("weft: error: other words\\n")
            sys.exit(3)
            """)
        with self.raises(weft.PermissionDenied, "not with this token") as caught:
            weft.job(8).status()
        self.assertEqual((caught.exception.code, caught.exception.exit_code, caught.exception.job),
                         ("PermissionDenied", 3, 8))

    def test_without_an_event_the_exit_code_tells(self):
        for code, kind in ((1, weft.Error), (2, weft.InvalidArgument), (3, weft.NotFound), (4, weft.Unsupported),
                           (5, weft.Corrupted), (6, weft.ResourceExhausted), (7, weft.Diverged), (8, weft.DeviceLost)):
            self.fake(f"""\
                sys.stderr.write("weft: error: it is so\\n")
                sys.exit({code})
                """)
            with self.raises(kind, "it is so") as caught:
                weft.jobs()
            self.assertIs(type(caught.exception), kind)

    def test_one_that_is_killed(self):
        self.fake("os.kill(os.getpid(), signal.SIGKILL)")
        with self.raises(weft.Error, "signal 9"):
            weft.jobs()

    def test_one_that_says_nothing(self):
        self.fake("")
        with self.raises(weft.Corrupted, "did not say a `status` event"):
            weft.job(1).status()

    def test_what_is_no_json_is_passed_over(self):
        self.fake("""\
            print("hello")
            print("[1]")
            say(event="status", job=2, state="queued")
            """)
        self.assertEqual([job.state for job in weft.jobs()], ["queued"])

    def test_the_last_line_may_lack_its_end(self):
        self.fake("""\
            sys.stdout.write('{"event": "status", "job": 2}')
            sys.stdout.flush()
            """)
        self.assertEqual(weft.job(2).status().job, 2)

    def test_a_token_is_not_among_the_arguments(self):
        self.fake("say(event='status', job=1)")
        weft.job(1, broker="b.example:7700", token="weft1-secret").status()
        call = self.calls()[-1]
        self.assertEqual(call["token"], "weft1-secret")
        self.assertNotIn("secret", str(call["arguments"]))


class Events(Case):
    def test_an_event_is_a_mapping_with_attributes(self):
        event = weft.Event({"event": "step", "step": 3, "loss": 0.5})
        self.assertEqual((event.kind, event.step, event["loss"], event.nothing), ("step", 3, 0.5, None))
        self.assertEqual(dict(event), {"event": "step", "step": 3, "loss": 0.5})
        self.assertEqual(repr(event), "<step step=3, loss=0.5>")
        with self.assertRaises(KeyError):
            event["nothing"]
        with self.assertRaises(AttributeError):
            event.step = 4
        self.assertEqual(pickle.loads(pickle.dumps(event)).step, 3)

    def test_all_events_until_the_end(self):
        self.fake(STEPS + "    say(event='result', job=3, status='completed', steps=3)\n")
        events = list(weft.job(3).events())
        self.assertEqual([event.kind for event in events], ["state", "step", "step", "step", "result"])
        self.assertEqual(weft.job(3).wait().steps, 3)
        self.assertEqual(self.calls()[-1]["arguments"], ["logs", "3", "--follow", "--format", "json"])

    def test_a_failure_has_its_result_and_raises(self):
        self.fake(STEPS + """\
            say(event="result", job=3, status="failed", reason="no peer is left", steps=3)
            sys.exit(1)
            """.replace("            ", "    "))
        seen = []
        with self.raises(weft.JobFailed, "no peer is left") as caught:
            for event in weft.job(3).events():
                seen.append(event.kind)
        self.assertEqual(seen[-1], "result")
        self.assertEqual(caught.exception.job, 3)

    def test_a_divergence(self):
        self.fake("say(event='result', status='failed', reason='not finite'); sys.exit(7)")
        with self.raises(weft.Diverged, "not finite"):
            weft.job(3).wait()

    def test_a_stop_is_no_failure(self):
        self.fake("say(event='result', status='stopped', steps=3); sys.exit(130)")
        self.assertEqual(weft.job(3).wait().status, "stopped")

    def test_a_time_without_events(self):
        self.fake(STEPS + "    time.sleep(600)\n")
        with program.Command(["logs"]) as command:
            kinds = [command.next_event(60).kind for _ in range(4)]
            self.assertEqual(kinds, ["state", "step", "step", "step"])
            with self.raises(weft.Timeout, "no event came within 0.05 seconds"):
                command.next_event(0.05)
        with self.raises(weft.Timeout, "no event came"):
            list(weft.job(3).events(timeout=0.05))

    def test_whoever_leaves_leaves_no_process(self):
        self.fake(STEPS + "    time.sleep(600)\n")
        events = weft.job(3).events()
        next(events)
        pid = self.calls()[-1]["pid"]
        self.assertTrue(is_alive(pid))
        events.close()
        self.assertFalse(is_alive(pid))
        with self.assertRaises(ZeroDivisionError):
            for _ in weft.job(3).events():
                1 // 0
        self.assertFalse(is_alive(self.calls()[-1]["pid"]))

    def test_one_that_does_not_end_when_asked_is_ended(self):
        self.fake("signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + textwrap.dedent(STEPS) + "time.sleep(600)\n")
        command = program.Command(["logs"])
        command.next_event()
        program.end_process(command.process, grace=0.1)
        self.assertEqual(command.process.returncode, -signal.SIGKILL)
        command.close()

    def test_much_is_read_in_pieces(self):
        self.fake("""\
            for step in range(20000):
                print(json.dumps(dict(event="step", step=step, text="x" * 50)))
            say(event="result", status="completed")
            """)
        count = sum(1 for event in weft.job(3).events() if event.kind == "step")
        self.assertEqual(count, 20000)


class Interrupts(Case):
    """Ctrl-C, as a terminal sends it: to a process that has a job's events before it."""

    def interrupted(self, body):
        script = self.write("script.py", textwrap.dedent("""\
            import sys
            sys.path.insert(0, {path!r})
            import weft
            """).format(path=os.path.dirname(os.path.dirname(weft.__file__))) + textwrap.dedent(body))
        process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
        return process.returncode, out, err

    def test_detaches_from_a_job(self):
        self.fake(STEPS + "    time.sleep(600)\n")
        code, out, err = self.interrupted("""\
            try:
                for e in weft.job(3).events():
                    if e.step == 3:
                        print("ready", flush=True)
            except KeyboardInterrupt:
                print("detached")
            """)
        self.assertEqual((code, out), (0, "detached\n"))
        self.assertIn("job 3 goes on; weft.job(3) is the way back", err)
        calls = self.calls()
        self.assertEqual([call["arguments"][0] for call in calls], ["logs"])  # nobody said stop
        self.assertFalse(is_alive(calls[-1]["pid"]))

    def test_detaches_also_from_within_the_loop(self):
        self.fake(STEPS + "    time.sleep(600)\n")
        code, out, err = self.interrupted("""\
            import signal
            before = signal.getsignal(signal.SIGINT)
            try:
                for e in weft.job(3).events():
                    if e.step == 3:
                        print("ready", flush=True)
                        while True:
                            pass
            except KeyboardInterrupt:
                del e
                print("detached")
            import gc
            gc.collect()
            print(signal.getsignal(signal.SIGINT) is before)
            """)
        self.assertEqual((code, out), (0, "detached\nTrue\n"))
        self.assertIn("job 3 goes on; weft.job(3) is the way back", err)
        self.assertFalse(is_alive(self.calls()[-1]["pid"]))

    def test_at_the_end_of_the_script_no_process_is_left(self):
        self.fake(STEPS + "    time.sleep(600)\n")
        code, _, err = self.interrupted("""\
            events = weft.job(3).events()
            next(events)
            print("ready", flush=True)
            import time
            time.sleep(60)
            """)
        self.assertNotEqual(code, 0)
        self.assertIn("KeyboardInterrupt", err)
        self.assertFalse(is_alive(self.calls()[-1]["pid"]))


class Watching(Case):
    def test_a_line_in_a_file(self):
        self.fake("""\
            say(event="start", steps=3)
            say(event="step", step=1, loss=0.5, samples_per_second=100.4)
            say(event="evaluation", after_step=3, metrics={"loss": 0.25, "accuracy": 0.5})
            say(event="step", step=3, loss=None)
            say(event="result", status="completed")
            """)
        import contextlib
        import io
        with contextlib.redirect_stderr(io.StringIO()) as said:
            result = weft.job(1).watch()
        self.assertEqual(result.status, "completed")
        self.assertIn("evaluation after step 3:  loss 0.2500  accuracy 0.5000", said.getvalue())
        self.assertTrue(said.getvalue().endswith("step 3/3  loss none\n"), said.getvalue())

    def test_a_curve_is_bounded(self):
        from weft.live import Curve
        curve = Curve(100)
        for step in range(1, 100001):
            curve.add(step, 1.0 / step)
        self.assertLessEqual(len(curve.points), 100)
        self.assertGreater(len(curve.points), 45)
        steps = [step for step, _ in curve.points]
        self.assertEqual(len({b - a for a, b in zip(steps, steps[1:])}), 1)  # evenly
        self.assertGreater(steps[-1], 95000)

    def test_a_notebook_replaces_its_text(self):
        from weft import live
        shown = []

        class Handle:
            def update(self, data, **_):
                shown.append(data)

        def display(data, **_):
            shown.append(data)
            return Handle()
        before = live.notebook_display
        live.notebook_display = lambda: display
        try:
            self.fake("""\
                say(event="step", step=1, loss=0.5)
                say(event="result", status="completed")
                """)
            weft.job(1).watch(plot=False)
        finally:
            live.notebook_display = before
        self.assertEqual(shown[0], {"text/plain": "waiting"})
        self.assertEqual(shown[-1], {"text/plain": "step 1  loss 0.5000"})


class Arguments(Case):
    def test_a_name_that_is_not_known(self):
        self.fake("")
        with self.raises(TypeError, "'batchsize'; do you mean 'batch_size'?"):
            weft.submit("job.yaml", batchsize=3)

    def test_a_job_file_with_changes(self):
        job = self.write("job.yaml", "model: model.onnx\n")
        self.fake("say(event='submitted', job=5); say(event='start', steps=4, warnings=['look'])")
        submitted = weft.submit(job, stages=3, learning_rate=0.1, steps=4, more={"placement.owner": 0.5})
        self.assertEqual((submitted.number, submitted.warnings), (5, ["look"]))
        self.assertEqual(self.calls()[-1]["arguments"], [
            "submit", job, "--set", "placement.stages=3", "--set", "optimizer.learning_rate=0.1", "--set", "steps=4",
            "--set", "placement.owner=0.5", "--detach", "--format", "json"])

    def test_what_a_job_file_says_itself(self):
        job = self.write("job.yaml", "model: model.onnx\n")
        self.fake("")
        with self.raises(weft.InvalidArgument, "says what the data are"):
            weft.submit(job, [1])
        with self.raises(weft.InvalidArgument, "there is no 'example'"):
            weft.submit(job, example=1)
        with self.raises(weft.NotFound, "is not there"):
            weft.submit(self.file("other.yaml"))

    def test_a_plan_is_for_a_cluster(self):
        self.fake("say(event='plan', stages=[])")
        with self.raises(weft.InvalidArgument, "a plan is for a cluster"):
            weft.plan("job.yaml")
        weft.plan(self.write("job.yaml", ""), live=True)
        self.assertEqual(self.calls()[-1]["arguments"][2:], ["--live", "--format", "json"])


class Serving(Case):
    def test_a_server_ends_with_its_block(self):
        self.fake("""\
            say(event="serving", url="http://127.0.0.1:1/v1", model="m")
            time.sleep(600)
            """)
        model = self.write("m.onnx", "")
        with weft.serve(model, context=8, name="m") as server:
            self.assertEqual((server.url, server.model), ("http://127.0.0.1:1/v1", "m"))
            self.assertTrue(server.is_running())
        self.assertFalse(server.is_running())
        self.assertFalse(is_alive(self.calls()[-1]["pid"]))
        self.assertEqual(self.calls()[-1]["arguments"],
                         ["serve", model, "--http", "127.0.0.1:0", "--name", "m", "--context", "8", "--format", "json"])

    def test_one_that_does_not_start(self):
        self.fake("say(event='error', code='Unsupported', exit_code=4, message='no tokens'); sys.exit(4)")
        with self.raises(weft.Unsupported, "no tokens"):
            weft.serve(self.write("m.onnx", ""))

    def test_one_that_takes_too_long(self):
        self.fake("time.sleep(600)")
        with self.raises(weft.Timeout, "no event"):
            weft.serve(self.write("m.onnx", ""), timeout=0.1)


if __name__ == "__main__":
    unittest.main()
