"""Models against the transformers that is installed: makes tiny models of every family with other weights and prompts than
the golden files hold, and runs the C++ comparison on them. Run by `make test-peers`; needs torch and transformers.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TEST = ROOT / "build/release/tests/engine_test"


class Models(unittest.TestCase):
    def test_fresh_models_agree(self):
        for seed in (100, 200):
            with self.subTest(seed=seed), tempfile.TemporaryDirectory() as folder:
                subprocess.run([sys.executable, str(ROOT / "tests/goldens/make_goldens.py"), "--out", folder,
                                "--seed", str(seed)], check=True)
                made = [path.name for path in Path(folder).iterdir()]
                self.assertGreater(len(made), 10)
                done = subprocess.run([str(TEST), "--gtest_filter=*GoldenModels*", "--gtest_brief=1"],
                                      env={**os.environ, "FOVEA_TEST_GOLDENS": folder}, capture_output=True, text=True,
                                      check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(" tests from ", done.stdout)


if __name__ == "__main__":
    unittest.main()
