"""Chat templates. One that comes with a model is a program: it is rendered in a process with limits of time and memory.

`python -m skill_ttrl.llm.template SECONDS BYTES` is that process: jobs in, texts out, one JSON object a line. The kernel ends it, so a
template that loops inside one operation of C ends as well.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import psutil

from skill_ttrl.answers.pool import worker_environment
from skill_ttrl.errors import ModelError

SECONDS = 20.0
"""Longest time for one batch of conversations; a thousand of them take less than a second."""
MEMORY = 1 << 30
"""Most bytes beyond those of the process at its start."""
GROWTH, LONGEST = 10, 1 << 20
"""Most characters that a template writes: so many times those of its messages, and so many more for each conversation."""
BATCH = 512
MESSAGES = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Of the built-in model with words."""
ACTIONS = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<act> ' + message['content'] + ' <obs> ' }}"
    "{% else %}{{ message['content'] + ' ' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<act> ' }}{% endif %}"
)
"""Of the built-in model with entities."""
OURS = (MESSAGES, ACTIONS)


class Renderer:
    """Renders foreign templates in one process, started when it is first needed. Threads take turns; a forked process starts its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        atexit.register(self.close)

    def render(self, tokenizer: Any, conversations: Sequence[Any], options: dict[str, bool]) -> list[str]:
        """What `tokenizer.apply_chat_template` gives for conversations, as texts.

        Raises:
            ValueError: the template fails, does not end in time, or needs too much memory.
        """
        variables = {name: _plain(value) for name, value in tokenizer.special_tokens_map.items()} | options
        template = tokenizer.get_chat_template()
        texts: list[str] = []
        for start in range(0, len(conversations), BATCH):
            part = list(conversations[start : start + BATCH])
            texts += self._ask({"conversations": part, "chat_template": template, **variables})
        return texts

    def close(self) -> None:
        """End the process; the next template starts another."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()

    def _ask(self, job: dict[str, Any]) -> list[str]:
        line = b""
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps(job).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                pass
            finally:  # dead, or interrupted: an answer that nobody reads would be taken for the next one's
                if not line.endswith(b"\n"):
                    self.close()
        if not line.endswith(b"\n"):
            raise ValueError(f"it did not finish within {SECONDS:g} s, or crashed the process that renders it")
        found = json.loads(line)
        if "error" in found:
            raise ValueError(found["error"])
        return list(found["texts"])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # after a fork the pipes are the parent's
            self._process, self._owner = None, os.getpid()
        if self._process is None:
            command = [sys.executable, "-P", "-m", __name__, str(SECONDS), str(MEMORY)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=worker_environment(), process_group=0
            )
            assert self._process.stdout is not None
            if not self._process.stdout.readline():
                self.close()
                raise ModelError(
                    "The process that renders chat templates ended when it started; its own message is above."
                )
        return self._process


RENDERER = Renderer()


def render_chats(tokenizer: Any, turns: Sequence[Any], options: dict[str, bool]) -> Any:
    """Render one conversation, or each of several: our own templates here, any other in `RENDERER`."""
    if getattr(tokenizer, "chat_template", None) in OURS:
        return tokenizer.apply_chat_template(turns, tokenize=False, **options)
    several = bool(turns) and isinstance(turns[0], list)
    texts = RENDERER.render(tokenizer, turns if several else [turns], options)
    return texts if several else texts[0]


def _plain(value: Any) -> Any:
    return [str(each) for each in value] if isinstance(value, list) else str(value)


def main() -> None:
    """Render jobs until standard input ends."""
    from transformers.utils.chat_template_utils import render_jinja_template

    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        limit = psutil.Process().memory_info().vms + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)  # its default ends the process
        try:
            rendered: Any = render_jinja_template(**job)
            texts = rendered[0]
            if sum(map(len, texts)) > GROWTH * len(line) + LONGEST * len(texts):
                raise ValueError(f"it writes more than {LONGEST:,} characters for a conversation")
            found = json.dumps({"texts": texts})
        except MemoryError:
            found = json.dumps({"error": f"it needs more than {memory >> 20:,} MiB"})
        except Exception as error:
            found = json.dumps({"error": f"{error or type(error).__name__}"})
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(found, flush=True)


if __name__ == "__main__":
    main()
