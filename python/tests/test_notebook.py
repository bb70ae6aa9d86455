"""A real notebook: its line and its plot are replaced in place, and an interrupt of its kernel detaches."""

import importlib.util
import json
import os
import unittest

from support import PATIENCE, ROOT, Case, is_alive

HERE = [name for name in ("nbclient", "nbformat", "ipykernel", "matplotlib") if importlib.util.find_spec(name) is None]


@unittest.skipIf(HERE, f"not here: {', '.join(HERE)}")
class Notebook(Case):
    def run_cells(self, *sources, allow_errors=False):
        import nbclient
        import nbformat

        notebook = nbformat.v4.new_notebook()
        first = f"import os, sys\nsys.path.insert(0, {os.path.join(ROOT, 'python')!r})\nimport weft"
        notebook.cells = [nbformat.v4.new_code_cell(source) for source in (first, *sources)]
        client = nbclient.NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", allow_errors=allow_errors)
        client.execute(cwd=self.folder)
        return [cell.outputs for cell in notebook.cells[1:]]

    def test_a_line_and_a_plot(self):
        self.fake("""\
            say(event="start", steps=9)
            for step in range(1, 10):
                say(event="step", step=step, loss=1.0 / step)
            say(event="result", status="completed")
            """)
        shown, result = self.run_cells("result = weft.job(1).watch()", "result")
        self.assertEqual([output.output_type for output in shown], ["display_data", "display_data"])
        self.assertEqual(shown[0].data["text/plain"], "step 9/9  loss 0.1111")
        self.assertIn("image/png", shown[1].data)
        self.assertEqual(result[0].data["text/plain"], "<result status='completed'>")

    def test_an_interrupt_of_the_kernel(self):
        self.fake("""\
            say(event="step", step=1, loss=1.0)
            time.sleep(600)
            """)
        outputs, after = self.run_cells(
            "import signal\nfor e in weft.job(3).events():\n    os.kill(os.getpid(), signal.SIGINT)\n",
            "print('still here')", allow_errors=True)
        said = "".join(output.get("text", "") for output in outputs)
        self.assertIn("job 3 goes on; weft.job(3) is the way back", said)
        self.assertEqual([output.ename for output in outputs if output.output_type == "error"], ["KeyboardInterrupt"])
        self.assertEqual(after[0].text, "still here\n")
        self.assertFalse(is_alive(self.calls()[-1]["pid"]))

    def test_json_is_all_that_is_needed(self):
        """The events of a job can go where a notebook keeps what it has shown."""
        self.fake("say(event='result', status='completed', metrics={'loss': 0.5})")
        outputs, = self.run_cells("import json\nprint(json.dumps([e.to_dict() for e in weft.job(1).events()]))")
        self.assertEqual(json.loads(outputs[0].text)[0]["metrics"], {"loss": 0.5})


if __name__ == "__main__":
    unittest.main()
