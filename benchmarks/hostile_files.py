"""The folder in which hostile command lines are run: files of every kind that somebody may name, good and bad."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LONG = "n" * 300
"""Longer than a file name may be."""

SOURCES = {
    "ok.py": (
        "def work(n=100):\n    return sum(range(n))\n\ndef other(n=200):\n    return sum(range(n))\n\n"
        "number = 3\n\nclass Thing:\n    pass\n"
    ),
    "syntax.py": "def work(:\n",
    "import_error.py": "import no_such_module_anywhere\ndef work(): pass\n",
    "raises.py": "raise ValueError('at import\\nin two lines')\n",
    "exits.py": "import sys\nsys.exit(0)\n",
    "leaves.py": "import os\nos._exit(9)\n",
    "slow_import.py": "import time\ntime.sleep(3600)\n",
    "fails.py": "def work():\n    raise RuntimeError('every time')\n",
    "forever.py": "import time\ndef work():\n    time.sleep(3600)\n",
}
YAML = {
    "tabs.yaml": "a:\n\t- b\n",
    "duplicate.yaml": "duration: 1\nduration: 2\n",
    "scalar.yaml": "just words\n",
    "list.yaml": "- 1\n- 2\n",
    "empty.yaml": "",
    "null.yaml": "null\n",
    "two_documents.yaml": "a: 1\n---\nb: 2\n",
    "deep.yaml": "[" * 3000 + "]" * 3000,
    "bomb.yaml": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "self.yaml": "a: &a [*a]\n",
    "tag.yaml": "a: !!python/object/apply:os.system ['true']\n",
    "date.yaml": "duration: 2026-99-99\n",
    "numbers.yaml": "duration: .nan\nseed: 1e400\nrepeat: -0\n",
    "wrong_types.yaml": "duration: {a: 1}\nseed: [1, 2]\nrepeat: null\nworkloads: {x: y}\n",
    "escaped_nul.yaml": 'workloads: ["a\\0b"]\nbackend: "\\0"\nthresholds: "\\0"\ncases: "\\0"\n',
    "surrogate.yaml": 'workloads: ["\\ud800"]\n',
    "line_break.yaml": 'workloads: ["a\\nb"]\noutput-dir: "a\\nb"\n',
    "long.yaml": f"output-dir: {LONG}\nworkloads: ['{LONG}.py:work']\n",
    "huge_number.yaml": f"seed: {'9' * 5000}\n",
}
JSON = {
    "truncated.json": '{"a": [1, 2',
    "deep.json": "[" * 5000 + "]" * 5000,
    "nan.json": '{"value": NaN, "duration": Infinity, "seed": 1e400}',
    "list.json": "[1, 2, 3]",
    "number.json": "3",
    "string.json": '"words"',
    "null.json": "null",
    "empty.json": "",
    "empty_object.json": "{}",
    "surrogate.json": '{"workloads": ["\\ud800"], "duration": "\\udfff"}',
    "nul.json": '{"workloads": ["a\\u0000b"], "output-dir": "\\u0000"}',
    "plan.json": '{"experiment": "run", "options": {"workloads": 3}}',
    "foreign_plan.json": '{"experiment": ["x"], "options": null}',
    "huge_number.json": '{"seed": ' + "9" * 5000 + "}",
    "kernels.json": '{"kernel_results": {"k": {"times_us": [NaN, -1, "x"]}}}',
    "rows.jsonl": '{"a": 1}\n[2]\nthree\n',
}
TABLES = {
    "header.csv": "model,batch,joules\n",
    "ragged.csv": "model,batch\na,1,2,3\nb\n",
    "nan.csv": "run,gpu,node,rack\nnan,inf,-1,\n",
    "quotes.csv": '"never closed,1,2\n',
    "bench.txt": "size reference fast\n64 1.0us 2.0us\n128 x y\n",
}
BYTES = {
    "nul.yaml": b"duration: 1\0\n",
    "binary.bin": bytes(range(256)) * 8,
    "binary.yaml": bytes(range(256)),
    "bom.yaml": b"\xef\xbb\xbfduration: 1\n",
    "utf16.yaml": "duration: 1\n".encode("utf-16"),
    "latin1.yaml": b"workloads: [bar\xe9]\n",
    "nul.py": b"def work():\n    pass\0\n",
    "latin1.py": b"# bar\xe9\ndef work(): pass\n",
    "not.npy": b"\x93NUMPY\x01\x00nonsense",
    "empty.npy": b"",
    "nul.csv": b"a,b\n1,\0\n",
}
ARRAYS = {
    "good.npy": np.linspace(9.0, 11.0, 40),
    "nan.npy": np.array([1.0, np.nan, 3.0]),
    "inf.npy": np.array([1.0, np.inf]),
    "negative.npy": np.array([-1.0, 2.0, 3.0]),
    "two_dimensions.npy": np.ones((3, 3)),
    "scalar.npy": np.array(3.0),
    "no_samples.npy": np.array([]),
    "complex.npy": np.array([1 + 2j, 3.0]),
    "text.npy": np.array(["a", "b"]),
    "record.npy": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "big_endian.npy": np.array([1.0, 2.0, 3.0], dtype=">f8"),
    "bool.npy": np.array([True, False]),
}


def make_files(folder: Path) -> None:
    """Fill a folder with good and hostile files; links, pipes and a git repository among them."""
    for name in ("thresholds.yaml", "config.yaml", "power_cases.yaml", "pytorch_single.yaml", "openai_server.yaml",
                 "run.yaml", "dot_products.py"):  # fmt: skip
        shutil.copy(EXAMPLES / name, folder / name)
    for name, text in {**SOURCES, **YAML, **JSON, **TABLES}.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, data in BYTES.items():
        (folder / name).write_bytes(data)
    for name, values in ARRAYS.items():
        np.save(folder / name, values)
    np.save(folder / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (folder / "folder").mkdir()
    (folder / "broken_link").symlink_to("gone")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "unreadable").write_text("secret")
    (folder / "unreadable").chmod(0)
    (folder / "event.json").write_text(json.dumps({"comment": {"body": 3}, "issue": None}))


def make_repository(folder: Path) -> None:
    """Make a folder a git repository with one commit of one file."""
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@localhost"]
    for words in (["init", "-q", "-b", "main"], ["add", "ok.py"], [*identity, "commit", "-q", "-m", "First"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
