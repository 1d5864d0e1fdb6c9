"""The size and link checkers find what they should."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import check_links
import check_sizes


def test_links(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.cc").write_text("")
    (tmp_path / "docs/x.md").write_text("# One two\n## `A`: b, c\n## `A`: b, c\n```\n# not a heading\n```\n")
    (tmp_path / "README.md").write_text(
        "[ok](docs/x.md) [ok](docs/x.md#one-two) [ok](docs/x.md#a-b-c-1) [ok](https://x.y/z) `src/a.cc` `src/<n>.cc`\n"
        "[bad](docs/y.md)\n[bad](docs/x.md#three)\n`src/b.cc`\n`src/{a,b}.cc`\n[bad](docs/x.md#not-a-heading)\n"
        "```\n[fine](docs/none.md)\n```\n`and/or` `build/release/fovea`\n")
    files = ["README.md", "docs/x.md", "src/a.cc"]
    checked, findings = check_links.check(tmp_path, files)
    assert checked == 2
    assert [int(finding.split(":")[1]) for finding in findings] == [2, 3, 4, 5, 6]


def test_sizes(tmp_path):
    (tmp_path / "ok.cc").write_text("// what it is\nint x;\n")
    (tmp_path / "ok.sh").write_text("#!/bin/sh\n# what it is\n")
    (tmp_path / "long.cc").write_text("// long\n" + "int x;\n" * 800)
    (tmp_path / "bare.py").write_text("import os\n")
    (tmp_path / "path.md").write_text("look in /wo" + "rk/here\n")
    with open(tmp_path / "big.bin", "wb") as big:
        big.truncate((16 << 20) + 1)
    checked, findings = check_sizes.check(tmp_path, ["bare.py", "big.bin", "long.cc", "ok.cc", "ok.sh", "path.md"])
    assert checked == 6
    assert [finding.split(":")[0] for finding in findings] == ["bare.py", "big.bin", "long.cc", "path.md"]
