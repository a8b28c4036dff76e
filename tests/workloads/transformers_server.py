"""A real server: ``transformers serve`` on this machine, with a tiny Llama that is made on the spot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tests.needing import need

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = ("accelerate", "fastapi", "openai", "tokenizers", "torch", "transformers", "typer", "uvicorn")

PROGRAM = """
import ctypes, signal, sys

ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it dies with the test

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.cli.serve import Serve

folder = sys.argv[1]
words = {word: number for number, word in enumerate(["<unk>", *(f"w{n}" for n in range(63))])}
bare = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="<unk>")
tokenizer.chat_template = "{% for m in messages %}w1 {{ m['content'] }} w2{% endfor %}"
tokenizer.save_pretrained(folder)
config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=0,
)
LlamaForCausalLM(config).save_pretrained(folder)
Serve(folder, host="127.0.0.1", port=0, device="cpu")
"""


class TransformersServer:
    """The server as a process, from when it answers until it is closed. The model's name is its folder."""

    def __init__(self, folder: Path) -> None:
        need([name for name in NEEDED if find_spec(name) is None], "transformers serve")
        self.model = str(folder / "model")
        home = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.model],
            env={**os.environ, **home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = ""
        self._reader = threading.Thread(target=self._read_on, daemon=True)

    def wait(self) -> None:
        """Return when it listens; its port is in what it logs."""
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            found = re.search(r"running on (http://\S+)", line)
            if found:
                self.url = f"{found[1]}/v1"
                self._reader.start()
                return
        raise AssertionError("transformers serve did not start:\n" + "".join(said[-20:]))

    def _read_on(self) -> None:
        """Read what it logs on each request: a pipe that nobody empties is full some day, and the server stops."""
        assert self._process.stderr is not None
        deque(self._process.stderr, maxlen=0)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._reader.is_alive():
            self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
