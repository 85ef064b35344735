"""Conversations as tokens, in which control tokens are the chat template's alone.

A question that spells `<|im_end|>` must stay text and end no turn. transformers can do this itself from 5.20 on
(`sanitize_control_tokens`), older versions silently pass the unknown argument to the template. vLLM pins an older
version, so this module does it, the same way for all versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from skill_ttrl.config import RolloutConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.backend import Generation, Request
from skill_ttrl.llm.models import ACTIONS, MESSAGES
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.types import (
    HARMONY,
    MARKS,
    THINK,
    THINK_END,
    Completion,
    Message,
    ToolCall,
    split_thought,
    with_thought,
)

_OPEN, _CLOSE = "\ue000\ue001", "\ue001\ue000"
"""Private-use characters around a control token in a message; taken out of messages first, so they cannot be forged."""
_MARKED = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)


def encode_chat(tokenizer: Any, messages: Sequence[Message], tools: Sequence[str] = ()) -> tuple[int, ...]:
    """Tokens of a conversation up to where the assistant begins; without a template, the contents joined by blank lines.

    `tools` are schemas (`Request.tools`), which the template shows; one that knows no tools gets them, calls and results as texts.
    """
    return encode_chats(tokenizer, [messages], tools)[0]


def encode_chats(
    tokenizer: Any, conversations: Sequence[Sequence[Message]], tools: Sequence[str] = ()
) -> list[tuple[int, ...]]:
    """`encode_chat` of many conversations: a fast tokenizer takes less time for all of them together."""
    called = tools or any(each.calls for messages in conversations for each in messages)
    if called and not _knows_tools(tokenizer):
        conversations, tools = [as_texts(each, tools) for each in conversations], ()
    if not getattr(tokenizer, "chat_template", None):
        texts = ["\n\n".join(message.content for message in messages) for messages in conversations]
        found = tokenizer(texts, split_special_tokens=True)["input_ids"] if texts else []
        # Some tokenizers end every text with eos: the answer would begin after the end.
        return [tuple(ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids) for ids in found]
    conversations = [list(map(_spelling_out, each)) for each in conversations] if called else conversations
    rest, own = control_tokens(tokenizer), control_tokens(tokenizer, thoughts=False)
    fields = _thought_fields(str(tokenizer.chat_template))
    turns = [[_turn(message, rest, own, fields) for message in messages] for messages in conversations]
    offered: dict[str, Any] = {"tools": [json.loads(each) for each in tools]} if tools else {}
    return encode_rendered(tokenizer, render(tokenizer, turns, add_generation_prompt=True, **offered) if turns else [])


_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
"""A call in the form of Hermes and Qwen, which is also that of models whose template knows no tools."""


def _knows_tools(tokenizer: Any) -> bool:
    return re.search(r"\btools\b", str(getattr(tokenizer, "chat_template", None) or "")) is not None


def as_texts(messages: Sequence[Message], tools: Sequence[str]) -> list[Message]:
    """A conversation with tools as one without: they stand at its head, calls in the assistant's turns, results in the user's."""
    found = [Message("system", Templates().render("tools", tools="\n".join(tools)))] if tools else []
    for each in messages:
        if each.role == "system" and found:
            found[0] = Message("system", f"{each.content}\n\n{found[0].content}")
        elif each.role != "tool":
            found.append(Message(each.role, each.content + "".join(map(call_text, each.calls))))
        else:
            text = f"<tool_response>\n{each.content}\n</tool_response>"
            if found and found[-1].role == "user":
                text = f"{found.pop().content}\n{text}"
            found.append(Message("user", text))
    return found


def _spelling_out(message: Message) -> Message:
    """The message with calls that are no JSON as a part of its text: no field of a template takes them."""
    odd = [call for call in message.calls if call.error == "not_json"]
    if not odd:
        return message
    text = message.content + "".join(map(call_text, odd))
    return replace(message, content=text, calls=tuple(call for call in message.calls if call not in odd))


def call_text(call: ToolCall) -> str:
    """A call as Hermes and Qwen write it; what is no JSON as it was written."""
    if call.error == "not_json":
        return f"<tool_call>{call.arguments}</tool_call>"
    return f'<tool_call>{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}</tool_call>'


def read_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """(the text without its calls, the calls) of what a model wrote in the form of Hermes and Qwen: `<tool_call>{json}</tool_call>`."""
    thought, said = split_thought(text)
    calls = tuple(map(read_call, _CALL.findall(said)))
    return (with_thought(thought, _CALL.sub("", said).strip()), calls) if calls else (text, ())


def read_call(written: str) -> ToolCall:
    """The call that `{"name": ..., "arguments": {...}}` spells; what cannot be parsed is one with the error `not_json`."""
    try:
        found = json.loads(written)
        name, arguments = found["name"], found.get("arguments", {})
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        name = arguments = None
    if isinstance(name, str) and isinstance(arguments, dict):
        return ToolCall(replace_surrogates(name), replace_surrogates(json.dumps(arguments, ensure_ascii=False)))
    return ToolCall("", written, error="not_json")


def _calls_of(message: Message, control: re.Pattern[str]) -> dict[str, Any]:
    """The fields of a turn that say what an assistant called, or which call a result answers."""
    if message.call is not None:
        return {"name": mark_control(message.call.name, control), "tool_call_id": message.call.id or NO_ID}
    calls = [
        {
            "type": "function",
            "id": call.id or NO_ID,
            "function": {
                "name": mark_control(call.name, control),
                "arguments": json.loads(mark_control(call.arguments, control)),
            },
        }
        for call in message.calls
    ]
    return {"tool_calls": calls} if calls else {}


_NAMES = "reasoning_content|reasoning|thinking"
_FIELDS = re.compile(rf"""\.({_NAMES})\b|\[["']({_NAMES})["']\]|get\(["']({_NAMES})["']|["']({_NAMES})["'] in \w""")
"""Where a template reads the field of a message that holds its thought."""


_PARTS = re.compile(r"""type(?:["']\])?\s*==\s*["']thinking["']""")
"""Where a template looks for the thought among the parts of a message's content, as Mistral's do."""


def _thought_fields(template: str) -> set[str]:
    """Fields of a message in which a template looks for its thought; `content`: among its parts."""
    return {"content"} if _PARTS.search(template) else set(chain.from_iterable(_FIELDS.findall(template))) - {""}


def _thinking_turn(thought: str, said: str, fields: set[str]) -> dict[str, Any]:
    if fields == {"content"}:
        parts = [{"type": "thinking", "thinking": thought}, {"type": "text", "text": said}]
        return {"role": "assistant", "content": parts}
    return {"role": "assistant", "content": said, **dict.fromkeys(fields, thought)}


def _turn(message: Message, control: re.Pattern[str], own: re.Pattern[str], fields: set[str]) -> dict[str, Any]:
    """A message as the template gets it: an assistant's thought in the fields that the template reads, else with its marks.

    Whether a thought is shown is the template's business.
    """
    text, calls = message.content, _calls_of(message, control)
    thought, said = split_thought(text) if message.role == "assistant" else ("", text)
    if said == text:
        return {"role": message.role, "content": mark_control(text, control)} | calls
    if not fields:
        return {"role": message.role, "content": mark_control(text, own)} | calls
    fields = fields if thought else set()
    return _thinking_turn(mark_control(thought, control), mark_control(said, control), fields) | calls


def encode_rendered(tokenizer: Any, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Tokens of rendered conversations, or parts of them; what `mark_control` marked stays text."""
    pieces = [[_without_marks(piece) for piece in _MARKED.split(text)] for text in texts]
    ours = _encode_all(tokenizer, (piece for row in pieces for piece in row[::2]))
    theirs = _encode_all(tokenizer, (piece for row in pieces for piece in row[1::2]), split_special_tokens=True)
    for piece, ids in theirs.items():
        # split_special_tokens splits no added token that is not special.
        if len(ids) == 1 and _CONTROL.fullmatch(piece):
            theirs[piece] = [*encode_plain(tokenizer, piece[:1]), *encode_plain(tokenizer, piece[1:])]
    return [
        tuple(chain.from_iterable((theirs if place % 2 else ours)[piece] for place, piece in enumerate(row) if piece))
        for row in pieces
    ]


@dataclass(frozen=True)
class _Growing:
    """A conversation that only grows, by one chat template."""

    template: str
    """The template that was looked at."""
    control: re.Pattern[str]
    end_id: int
    """Token that ends an answer."""
    ending_ids: frozenset[int]
    """Tokens that end an answer where one was sampled last: all control tokens."""
    refused: str = ""
    """Why a conversation cannot grow by messages of the user; empty: it can."""
    next_ids: dict[Any, tuple[int, ...]] = field(default_factory=dict)
    """Tokens of messages by message, and of results: observations come again and again."""

    def remember(self, key: Any, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Cache tokens, and return them."""
        if len(self.next_ids) >= REMEMBERED:
            self.next_ids.clear()
        self.next_ids[key] = tokens
        return tokens


_FIRST, _SAID = "\ue002", "\ue003"
"""Stand in a conversation for what was said before."""
_THOUGHT = f"<think>\n{_SAID}\n</think>\n\n{_SAID}"
_CONTROL = re.compile(r"<([|｜]).+\1>")
"""What looks like a control token. Those of DeepSeek's turns are added tokens, but not special."""
OPENED_WITHIN = 8
"""Tokens at the end of a prompt in which it may open a thought."""
REMEMBERED = 10_000
"""Most messages of a tokenizer whose tokens are kept in mind."""
NO_ID = "call00000"
"""Of a call without an id: Mistral's templates want nine letters and digits."""
_GROWING: WeakKeyDictionary[Any, _Growing] = WeakKeyDictionary()


def encode_next(tokenizer: Any, message: Message) -> tuple[int, ...]:
    """Tokens that follow the end of the assistant's answer: the next message, and the beginning of the next answer.

    The tokens of a conversation are then those of its first prompt, the answer, its end token (`turn_end`) where it was not sampled,
    these, the next answer, and so on: nothing that stands is tokenised again.

    Raises:
        ConfigError: the chat template does not only append, or there is none.
    """
    growing = _growing(tokenizer)
    if message in growing.next_ids:
        return growing.next_ids[message]
    return growing.remember(message, encode_rendered(tokenizer, [_after(tokenizer, growing, message)])[0])


def encode_results(tokenizer: Any, results: Sequence[Message]) -> tuple[int, ...]:
    """Tokens that follow the end of an answer with calls: their results, and the beginning of the next answer, as the template's difference.

    Raises:
        ConfigError: the template changes the answer once results follow, or ends it with no control token.
    """
    if not _knows_tools(tokenizer):
        return encode_next(tokenizer, *as_texts(results, ()))
    growing, found = _growing(tokenizer, with_calls=True), ""
    calls = tuple(ToolCall(each.call.name, "{}", each.call.id) for each in results if each.call is not None)
    key = calls, tuple(each.content for each in results)  # not its arguments, which are in the answer already
    if key in growing.next_ids:
        return growing.next_ids[key]
    control, asked = growing.control, _calls_of(Message("assistant", "", calls), growing.control)
    turns = [
        {"role": "tool", "content": mark_control(each.content, control)} | _calls_of(each, control) for each in results
    ]
    first = {"role": "user", "content": _FIRST}
    begun = render(tokenizer, [first], add_generation_prompt=True)
    for said in (_THOUGHT, _SAID):
        answered = [first, {"role": "assistant", "content": said} | asked]
        base, longer = render(tokenizer, answered), render(tokenizer, [*answered, *turns], add_generation_prompt=True)
        if said in base and longer.startswith(begun + said):  # Qwen3's has an empty thought in the last answer only
            base = begun + base[base.rindex(said) :]
        ends = [each.end() for each in control.finditer(base)]
        if not longer.startswith(base) or not ends or base[ends[-1] :].strip():
            raise ConfigError(
                "The model's chat template does not only append the results of tools to an answer. Give the tokenizer a template that "
                "does, or set agent.context_mode=conversation."
            )
        found = base[ends[-1] :] + longer[len(base) :]
    return growing.remember(key, encode_rendered(tokenizer, [found])[0])


def turn_end(tokenizer: Any) -> int:
    """The token by which the chat template ends an answer. It is the first of what follows the answer in a longer conversation.

    Raises:
        ConfigError: see `encode_next`.
    """
    return _growing(tokenizer).end_id


def answer_end(tokenizer: Any) -> int:
    """The token by which a single answer ends: the chat template's, or the one that begins the next turn (GLM's `<|user|>`), or the
    tokenizer's eos where there is no template or neither is a control token.
    """
    if getattr(tokenizer, "chat_template", None):
        asked, said = {"role": "user", "content": _FIRST}, {"role": "assistant", "content": _SAID}
        for turns in ([asked, said], [asked, said, asked]):
            found = _control_after(control_tokens(tokenizer), render(tokenizer, turns), _SAID)
            if found is not None:
                return int(tokenizer.convert_tokens_to_ids(found))
    return int(tokenizer.eos_token_id)


def _control_after(control: re.Pattern[str], text: str, said: str) -> str | None:
    """The control token that follows `said` in a rendered conversation; None: another text does, or nothing."""
    _, there, after = text.rpartition(said)
    found = control.search(after) if there else None
    return found[0] if found is not None and not after[: found.start()].strip() else None


def missing_end(tokenizer: Any, completion: Completion, *, with_calls: bool = False) -> tuple[int, ...]:
    """The end token of an answer that lacks it, which was cut off or ended at a text; else nothing.

    Raises:
        ConfigError: see `encode_next`.
    """
    growing, ids = _growing(tokenizer, with_calls=with_calls), completion.token_ids
    ended = completion.finish_reason == "stop" and ids and ids[-1] in growing.ending_ids
    return () if ended else (growing.end_id,)


def _growing(tokenizer: Any, *, with_calls: bool = False) -> _Growing:
    """Describe how a tokenizer's conversations grow. With `with_calls` they grow by results of tools: many templates only append these, but
    rewrite earlier turns before a user's message.
    """
    found, template = _GROWING.get(tokenizer), getattr(tokenizer, "chat_template", None)
    if not template:
        raise ConfigError(
            "agent.context_mode=episode needs a chat template, but the model's tokenizer has none. Add chat_template.jinja to the "
            "tokenizer's folder, or set agent.context_mode=conversation."
        )
    if found is None or found.template != str(template):
        found = _look_at(tokenizer, str(template))
        _GROWING[tokenizer] = found
    if found.refused and not with_calls:
        raise ConfigError(found.refused)
    return found


def _look_at(tokenizer: Any, template: str) -> _Growing:
    """Examine a template: whether it takes back or changes what it wrote before, and how it ends an answer."""
    asked = [{"role": "user", "content": _FIRST}]
    control = control_tokens(tokenizer)
    begun = render(tokenizer, asked, add_generation_prompt=True)
    end_id, refused = answer_end(tokenizer), ""
    names = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    for said in (_SAID, _THOUGHT):
        answered = [*asked, {"role": "assistant", "content": said}]
        longer = render(tokenizer, [*answered, *asked], add_generation_prompt=True)
        if not longer.startswith(begun + said):
            what = "thoughts of earlier answers" if said == _THOUGHT else "what it wrote before"
            refused = refused or (
                f"agent.context_mode=episode appends to a conversation, but the model's chat template changes {what} as it grows. Set "
                "agent.context_mode=conversation, or give the tokenizer a template that only appends."
            )
        end = _control_after(control, longer, said)
        if end is None:
            refused = refused or (
                "agent.context_mode=episode needs a chat template that ends an answer with a control token, and the model's does not. Set "
                "agent.context_mode=conversation, or give the tokenizer a template that does."
            )
        else:
            end_id = names[end]
    ending = frozenset(index for name, index in names.items() if control.fullmatch(name))
    return _Growing(template, control, end_id, ending, refused)


def _after(tokenizer: Any, growing: _Growing, message: Message) -> str:
    """The rendered text that follows the end token of an answer."""
    turns = [{"role": "user", "content": _FIRST}, {"role": "assistant", "content": _SAID}]
    turns.append({"role": message.role, "content": mark_control(message.content, growing.control)})
    text = render(tokenizer, turns, add_generation_prompt=True)
    end = growing.control.search(text, text.index(_SAID))
    assert end is not None  # `_look_at` saw it
    return str(text[end.end() :])


def render(tokenizer: Any, turns: Sequence[Any], **options: Any) -> Any:
    """Render one conversation, or each of several, with the model's chat template: as text, not yet tokenized.

    Where the template refuses a system message, its text goes in front of the first user's message.

    Raises:
        ModelError: the template takes no such conversation, or is broken.
    """
    several = bool(turns) and isinstance(turns[0], list)
    talks: list[Any] = list(turns) if several else [turns]
    try:
        found = tokenizer.apply_chat_template(talks, tokenize=False, **options)
    except Exception as error:  # a template is a program of others: whatever it raises
        try:
            found = tokenizer.apply_chat_template(list(map(_merge_system, talks)), tokenize=False, **options)
        except Exception:
            raise ModelError(
                f"The chat template of the model cannot write a conversation such as {', '.join(turn['role'] for turn in talks[0])}: "
                f"{' '.join(str(error).split())[:300]}. Change the messages (agent.system), or chat_template.jinja in the tokenizer's folder."
            ) from error
    return list(found) if several else found[0]


def _merge_system(turns: list[Any]) -> list[Any]:
    """The conversation with its system message and a blank line in front of its first user's message, as Gemma's documentation has it."""
    asked = [place for place, turn in enumerate(turns) if turn["role"] == "user"]
    if not asked or turns[0]["role"] != "system":
        return turns
    merged = {"role": "user", "content": f"{turns[0]['content']}\n\n{turns[asked[0]]['content']}"}
    return [*turns[1 : asked[0]], merged, *turns[asked[0] + 1 :]]


def _encode_all(tokenizer: Any, texts: Iterable[str], **options: bool) -> dict[str, list[int]]:
    """Tokens by text, each text once."""
    different = [text for text in dict.fromkeys(texts) if text]
    if not different:
        return {}
    found = tokenizer(different, add_special_tokens=False, return_attention_mask=False, **options)["input_ids"]
    return dict(zip(different, found, strict=True))


def template_warning(backend: Any, messages: Sequence[Message]) -> str:
    """A warning that prompts such as `messages` follow no chat template, or that it drops their system message or refuses it.

    Empty where none is so, or where the policy's server renders them.

    Raises:
        ModelError: it drops the user's messages, or cannot write them.
    """
    tokenizer = getattr(backend, "tokenizer", None)
    template = getattr(tokenizer, "chat_template", None)
    if tokenizer is None or template == "":  # model.chat_template=none
        return ""
    if not template:
        return (
            "The model's tokenizer has no chat template: prompts are the contents of the messages, joined by blank lines, without roles. "
            "A chat model was trained on another format; see docs/models.md."
        )
    turns = [{"role": each.role, "content": _SAID if each.role == "system" else _FIRST} for each in messages]
    shown = render(tokenizer, turns, add_generation_prompt=True)
    if _FIRST not in shown:
        raise ModelError(
            "The model's chat template drops the text of messages; those of models for images may take nothing but lists of parts. Use a model for text, or correct chat_template.jinja in the tokenizer's folder."
        )
    if all(each.role != "system" for each in messages):
        return ""
    if _SAID not in shown:
        return "The model's chat template drops the system message: neither agent.system nor a document placed there reaches the model. Put it into the user's message (agent.template), or correct chat_template.jinja."
    try:
        tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:
        return "The model's chat template refuses a system message: its text goes in front of the first user's message, with a blank line between them."
    return ""


def decode_texts(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """Texts of tokens, without special tokens other than marks of thoughts: Mistral's and gpt-oss' are special."""
    special = {token.content: index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    names = {"<|channel>", *chain(*MARKS), *(HARMONY if "<|channel|>" in special else ())}
    marks = {index: name for name, index in special.items() if name in names}
    if not any(index in marks for row in rows for index in row):
        return list(tokenizer.batch_decode(rows, skip_special_tokens=True))

    def text(ids: list[int]) -> str:  # all of them are the same mark, or none is a mark
        return marks[ids[0]] * len(ids) if ids[0] in marks else str(tokenizer.decode(ids, skip_special_tokens=True))

    return ["".join(text(list(ids)) for _, ids in groupby(row, key=marks.get)) for row in rows]


def open_thoughts(tokenizer: Any, requests: Sequence[Request], found: Sequence[Generation]) -> list[Generation]:
    """The generations, where the prompt has opened a thought with texts that open it: one that never ends is no content."""
    if not found:  # the decoder makes one text of none
        return []
    tails = tokenizer.batch_decode([each.prompt_ids[-OPENED_WITHIN:] for each in found])
    made = []
    for tail, request, each in zip(tails, requests, found, strict=True):
        if tail.rstrip().endswith(THINK) and not request.assistant_prefix and not request.choice:
            each = replace(
                each, completions=tuple(replace(one, text=f"{THINK}\n{one.text}") for one in each.completions)
            )
        made.append(each)
    return made


def answer_form(tokenizer: Any) -> Callable[[str], str]:
    """How the chat template has an assistant write an answer, after the beginning of its turn; answers are trained in this form.

    Many write an empty thought before one without a thought, Mistral's a space, gpt-oss' the channel of its parts.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    if not template or template in (MESSAGES, ACTIONS):
        return str
    asked, fields = [{"role": "user", "content": _FIRST}], _thought_fields(template)
    begun = render(tokenizer, asked, add_generation_prompt=True)

    def before(turn: dict[str, Any]) -> str | None:
        text = render(tokenizer, [*asked, turn])
        return text[len(begun) : text.rindex(_SAID)] if text.startswith(begun) and _SAID in text else None

    opened = begun.rstrip().endswith(THINK)
    plain = before({"role": "assistant", "content": _SAID}) or ""
    thinking = before(_thinking_turn(_FIRST, _SAID, fields)) if fields else None
    if opened and THINK_END not in plain:
        plain = f"\n{THINK_END}\n\n"

    def form(text: str) -> str:
        thought, said = split_thought(text)
        if not thought and (plain or said == text):
            return plain + said
        if thinking and _FIRST in thinking:
            return thinking.replace(_FIRST, thought) + said
        if opened:
            return text.removeprefix(THINK).lstrip("\n")
        return text if THINK_END in plain else plain + text

    return form


def encode_plain(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Tokens of a text as text: what spells a control token does not become one."""
    return tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def count_unknown(tokenizer: Any, sequences: Iterable[Sequence[int]]) -> tuple[int, int]:
    """(tokens that stand for words which the tokenizer does not know, tokens in all); (0, 0) for one that has a token for any text."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown in (None, tokenizer.eos_token_id, tokenizer.pad_token_id):
        return 0, 0
    counts = [(tuple(ids).count(unknown), len(ids)) for ids in sequences]
    return sum(found for found, _ in counts), sum(total for _, total in counts)


def mark_control(text: str, control: re.Pattern[str]) -> str:
    """A message's text with marks around all that spells a control token."""
    return control.sub(f"{_OPEN}\\g<0>{_CLOSE}", _without_marks(text))


def _without_marks(text: str) -> str:
    """The text without our marks, also where a template has cut one of a pair."""
    while _OPEN in text or _CLOSE in text:
        text = text.replace(_OPEN, "").replace(_CLOSE, "")
    return text


def control_tokens(tokenizer: Any, *, thoughts: bool = True) -> re.Pattern[str]:
    """Matches what must not be spelled: special tokens, and added ones that the template writes or that look like control tokens; `thoughts`: marks of thoughts too."""
    template = str(tokenizer.chat_template)
    added = tokenizer.added_tokens_decoder.values()
    texts = [
        token.content
        for token in added
        if token.special or (token.content in template and token.content.strip()) or _CONTROL.fullmatch(token.content)
    ]
    longest_first = sorted(texts if thoughts else set(texts) - set(chain(*MARKS)), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # which never matches


def end_ids(model: Any, tokenizer: Any) -> set[int]:
    """Ids that end a completion: the generation config's, the tokenizer's and the chat template's.

    Raises:
        ModelError: there are none, so no completion could ever end.
    """
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    named = [*(listed if isinstance(listed, list) else [listed]), tokenizer.eos_token_id]
    ids = {int(token) for token in named if token is not None}
    if getattr(tokenizer, "chat_template", None) and ids:
        ids.add(answer_end(tokenizer))
    if not ids:
        raise ModelError(
            "Neither the model nor its tokenizer names an end-of-sequence token. Set one in the tokenizer."
        )
    return ids


def write_sampling(folder: Path, tokenizer: Any, rollout: RolloutConfig) -> None:
    """Make the rollouts' temperature, top-p, top-k and ends the defaults of a saved model, in `generation_config.json`.

    transformers' own top-k is 50. Stop texts become the tokens that contain one: as texts they would need the tokenizer in each call
    of `generate`, and vLLM does not read them. A text that no token contains ends nothing.
    """
    from transformers import GenerationConfig

    how = GenerationConfig.from_pretrained(folder)
    pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))]) if rollout.stop else []
    stops = {token for token, piece in enumerate(pieces) if any(text in piece for text in rollout.stop)}
    how.eos_token_id = sorted(end_ids(SimpleNamespace(generation_config=how), tokenizer) | stops)
    how.do_sample, how.temperature, how.top_p, how.top_k = True, rollout.temperature, rollout.top_p, rollout.top_k
    how._from_model_config = False  # else transformers may make it anew
    how.save_pretrained(folder)


class TokenizerMixin:
    """Methods shared by all backends with a local tokenizer (see `Backend`)."""

    tokenizer: Any

    def prompts(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Prompt tokens of each request."""
        return [self.encode(each.messages) if each.token_ids is None else each.token_ids for each in requests]

    def encode(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> tuple[int, ...]:
        """Prompt tokens by the tokenizer's chat template; without one, the contents joined by blank lines."""
        return encode_chat(self.tokenizer, messages, tools)

    def encode_next(self, message: Message, after: Completion | None = None) -> tuple[int, ...]:
        """Tokens between an answer and the next one; begins with the end token that `after` lacks, if any."""
        found = encode_next(self.tokenizer, message)
        return found if after is None else (*missing_end(self.tokenizer, after), *found)

    def encode_results(self, results: Sequence[Message], after: Completion) -> tuple[int, ...]:
        """Tokens between an answer with calls and the next one; begins with the end token that `after` lacks, if any."""
        found = encode_results(self.tokenizer, results)
        return (*missing_end(self.tokenizer, after, with_calls=True), *found)

    def tool_calls(
        self, completion: Completion, tools: Sequence[str], prompt_ids: Sequence[int] = ()
    ) -> tuple[str, tuple[ToolCall, ...]]:
        """(the text without its calls, the calls) of an answer, by the tokenizer's response template, else in the form of Hermes and Qwen.

        What cannot be parsed is a call with the error `not_json`.
        """
        if not getattr(self.tokenizer, "response_template", None):
            return read_calls(completion.text)
        try:
            ids = list(completion.token_ids)
            ids = ids[:-1] if ids and ids[-1] in self.tokenizer.all_special_ids else ids
            schemas = [json.loads(each) for each in tools]
            found = self.tokenizer.parse_response(ids, prefix=list(prompt_ids), tools=schemas)
            calls = [call.get("function", call) for call in found.get("tool_calls") or ()]
            parsed = [read_call(json.dumps({"name": call["name"], "arguments": call["arguments"]})) for call in calls]
            thought = found.get("thinking") or found.get("reasoning_content") or found.get("reasoning") or ""
            return with_thought(str(thought), str(found.get("content") or "")), tuple(parsed)
        except Exception:  # a program of the tokenizer's authors on a text of a model's
            return "", (ToolCall("", completion.text, error="not_json"),)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Tokens of a text inside an answer; see `Backend.encode_text`."""
        return encode_plain(self.tokenizer, text)

    def count(self, messages: Sequence[Message]) -> int:
        """Count the tokens of a prompt, as `encode` encodes it."""
        return len(self.encode(messages))

    def count_text(self, text: str) -> int:
        """Count the tokens of a text, as `encode_text` encodes it."""
        return len(self.encode_text(text))


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """A function as chat templates and servers describe a tool: its name, its docstring, and the JSON schema of its arguments."""
    from transformers.utils.chat_template_utils import get_json_schema

    schema: dict[str, Any] = get_json_schema(function)
    schema["function"].pop("return", None)
    return schema
