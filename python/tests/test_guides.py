"""Every Python program of the README and the guides."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import kaml

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "python/README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]


class Programs(unittest.TestCase):
    """Each block is a program of its own, which can be run again."""

    def test_every_program_runs_twice(self):
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(kaml.__file__).parents[1].resolve())}
        count = 0
        for page in PAGES:
            for program in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
                count += 1
                with tempfile.TemporaryDirectory() as directory:
                    for run in (1, 2):
                        with self.subTest(page=page.name, program=program, run=run):
                            command = [sys.executable, "-B", "-W", "error", "-c", program]
                            done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60)
                            self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertGreater(count, 12)

    def test_the_first_program_is_the_example(self):
        example = (ROOT / "python/examples/first.py").read_text()
        for page in (ROOT / "README.md", ROOT / "python/README.md", ROOT / "docs/guide/python.md"):
            self.assertIn(f"```python\n{example}```", page.read_text(), page)
