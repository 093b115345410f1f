"""The engine runs where the app's and the command line's packages are missing."""

from __future__ import annotations

import os
import subprocess
import sys

from specchat.engine.protocol import events
from specchat.engine.protocol.codec import decode_event, encode
from specchat.engine.protocol.commands import Generate, Load, Message

ABSENT = ("typer", "textual", "rich", "click", "tomlkit", "platformdirs")

BLOCKED = f"""
import sys
for name in [name for name in sys.modules if name.split(".")[0] in ("specchat", "transformers", *{ABSENT!r})]:
    del sys.modules[name]  # of a process that has imported them
sys.modules.update(dict.fromkeys({ABSENT!r}))
import runpy
runpy.run_module("specchat.engine", run_name="__main__")
"""


def test_an_engine_needs_neither_typer_nor_textual_nor_rich(preloaded, tmp_path):
    commands = [
        Load({"pair": "scripted", "max_tokens": 5}),
        Generate(1, [Message("user", "hello")]),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SPECCHAT_HOME": str(tmp_path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for command in commands:
        process.stdin.write(encode(command))
    process.stdin.flush()
    seen = []
    for line in process.stdout:
        seen.append(decode_event(line))
        if isinstance(seen[-1], events.Finished | events.Failed):
            break
    process.stdin.close()
    process.wait(120)
    assert isinstance(seen[-1], events.Finished), seen[-1]
    assert seen[-1].stats.tokens == 5
