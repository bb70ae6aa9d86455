"""A data set of 1 GB is written and trained on while this process, PyTorch in it, stays below 300 MB."""

import os
import subprocess
import sys
import unittest

from support import Case

SCRIPT = """\
import sys, torch, weft

class Photos(torch.utils.data.Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, i):
        return torch.full((1, 256, 512), float(i % 7)), i % 4

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(512, 4)

    def forward(self, x):
        return self.fc(x.mean((1, 2)))

with weft.local(Small(), Photos(), loss="cross_entropy", batch_size=8, steps=2, directory=sys.argv[1], threads=1) as run:
    assert run.wait().status == "completed"
    run.load_into(Small())
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


class Large(Case):
    def test_a_gigabyte(self):
        script = self.write("script.py", SCRIPT)
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
        said = subprocess.run([sys.executable, script, self.file("job")], env={**os.environ, "PYTHONPATH": path},
                              stdout=subprocess.PIPE, text=True, check=True)
        self.assertGreater(os.path.getsize(self.file("job/train.x.npy")), 1 << 30)
        kilobytes = int(said.stdout)
        print(f"peak memory {kilobytes / 1000:.0f} MB")
        self.assertLess(kilobytes, 300_000)


if __name__ == "__main__":
    unittest.main()
