"""Text at the edges of the engine: prompts to tokens, tokens to text as they come, stop strings."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import OptionError, PromptError

Message = Mapping[str, Any]
Array = torch.Tensor | np.ndarray[Any, Any]
Encoded = Array | Mapping[str, Any]
"""Token ids as a tensor or an array, or what a tokenizer returns: one prompt or several."""
OnePrompt = str | Sequence[int] | Sequence[Message]
Batch = list[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]] | Sequence[Array]
Prompt = OnePrompt | Batch | Encoded

_UNFINISHED = "\ufffd"
_READ_KEYS = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "offset_mapping", "length")
_TURN_KEYS = ("add_generation_prompt", "continue_final_message")
_OUR_KEYS = (
    "conversation",
    "messages",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
)
"""Of `apply_chat_template`: what says how the answer begins, and what is ours to say."""


def encode_prompts(
    prompt: Prompt, tokenizer: Any, chat: Mapping[str, Any] | None = None
) -> tuple[list[list[int]], bool]:
    """(token lists, whether the caller gave a batch); `chat` is for the chat template."""
    if isinstance(prompt, list) and prompt and not chat and all(_are(int, item) for item in prompt):
        return [list(item) for item in prompt], True
    plain = _as_plain(prompt)
    if isinstance(plain, str) or _is_conversation(plain) or _is_token_list(plain):
        return [_encode_one(plain, tokenizer, chat or {})], False
    if _are(str, plain) and all(plain) and not chat and getattr(tokenizer, "is_fast", False):
        tokens: list[list[int]] = tokenizer(plain).input_ids  # the same as one by one
        if all(tokens):
            return tokens, True
    return [_encode_one(item, tokenizer, chat or {}) for item in _as_list(plain)], True


def encode_prompt(prompt: Prompt, tokenizer: Any, chat: Mapping[str, Any], task: str) -> list[int]:
    """A single prompt; `task` is for the message."""
    prompts, is_batch = encode_prompts(prompt, tokenizer, chat)
    if is_batch:
        raise PromptError(f"{task}; pass its own prompt instead of a list of {len(prompts)} prompts")
    return prompts[0]


def read_tokens(tokens: Any) -> tuple[int, ...]:
    """Token ids that were generated, in any form that a prompt may have; there may be none."""
    plain = _as_plain(tokens)
    if not isinstance(plain, list) or any(type(token) is not int for token in plain):
        raise OptionError(f"an output must be a Generation or a list of token ids, got {reprlib.repr(tokens)}")
    return tuple(plain)


# ----------------------------------------------------------------------------------------------- forms of a prompt


def _as_plain(prompt: Any) -> Any:
    """Arrays and encodings as lists, whatever holds them; all else as it is."""
    if isinstance(prompt, int | str | bytes) or _are(int, prompt) or _are(str, prompt):
        return prompt
    if isinstance(prompt, torch.Tensor | np.ndarray | np.generic):
        return _from_array(prompt)
    if isinstance(prompt, Mapping):
        return _from_encoding(prompt) if "input_ids" in prompt else prompt
    return [_as_plain(item) for item in prompt] if isinstance(prompt, Sequence) else prompt


def _are(kind: type[Any], items: Any) -> bool:
    """Whether it is a list of that type and nothing else."""
    return isinstance(items, list) and set(map(type, items)) == {kind}


def _from_array(array: Any) -> Any:
    """[n] or [1, n]: one prompt; [rows, n]: several, none of them padded."""
    kind = getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))
    shape = [] if getattr(array, "is_nested", False) else list(array.shape)
    if not kind.startswith(("int", "uint")) or len(shape) > 2:
        raise PromptError(
            f"an array of token ids must hold whole numbers, [n] or [rows, n], got {kind} {shape}; pass the "
            "tokenizer's input_ids"
        )
    rows = _listed(array)
    return rows[0] if len(shape) == 2 and shape[0] == 1 else rows


def _listed(value: Any) -> Any:
    """Tensors and arrays as lists, whatever holds them."""
    if hasattr(value, "tolist"):
        try:
            return value.tolist()
        except Exception as error:  # sparse, nested, on the meta device, ...
            raise PromptError(
                f"a {type(value).__name__} cannot be read as a list ({str(error).splitlines()[0]}); pass what the "
                "tokenizer returns"
            ) from error
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _from_encoding(encoding: Mapping[str, Any]) -> Any:
    strangers = [name for name in encoding if name not in _READ_KEYS]
    if strangers:
        raise PromptError(
            f"a prompt is read from input_ids and attention_mask alone, got {', '.join(map(repr, strangers))} too; "
            "leave that out"
        )
    ids, mask = _as_plain(encoding["input_ids"]), encoding.get("attention_mask")
    if mask is None or not isinstance(ids, list):
        return ids
    mask = _listed(mask)
    if not ids or not isinstance(ids[0], list):
        is_row = isinstance(mask, list) and len(mask) == 1 and isinstance(mask[0], list)
        return _without_padding(ids, mask[0] if is_row else mask)
    if not isinstance(mask, list) or len(mask) != len(ids):
        raise _unlike_mask(ids, mask)
    return [_without_padding(row, flags) for row, flags in zip(ids, mask, strict=True)]


def _without_padding(ids: Any, mask: Any) -> list[int]:
    if not isinstance(ids, list) or not isinstance(mask, list) or len(mask) != len(ids):
        raise _unlike_mask(ids, mask)
    if strange := [flag for flag in mask if flag not in (0, 1)]:
        raise PromptError(f"an attention_mask is of ones and zeros, got {reprlib.repr(strange[0])}; leave it out")
    places = [place for place, flag in enumerate(mask) if flag]
    if not places:
        raise PromptError("a prompt is all padding: its attention_mask has no ones; every prompt needs a token")
    first, last = places[0], places[-1]
    if len(places) <= last - first:
        hole = next(place for place in range(first, last) if not mask[place])
        raise PromptError(
            f"the attention_mask hides token {hole}, inside the prompt; only padding before or after it can be "
            "removed. Leave the token out"
        )
    return ids[first : last + 1]


def _unlike_mask(ids: Any, mask: Any) -> PromptError:
    return PromptError(
        f"attention_mask {reprlib.repr(mask)} does not fit input_ids {reprlib.repr(ids)}; they must agree, one number "
        "per token"
    )


def _encode_one(prompt: Any, tokenizer: Any, chat: Mapping[str, Any]) -> list[int]:
    is_ids = not isinstance(prompt, str) and _is_token_list(prompt)
    if chat and (is_ids or isinstance(prompt, str)):
        given = "token ids" if is_ids else "text"
        raise OptionError(f"chat_template_kwargs are for messages, got {given}; leave them out, or pass messages")
    if is_ids:
        return list(prompt)
    if tokenizer is None:
        raise PromptError(
            "this engine has no tokenizer; pass token ids, build it as Engine(model, tokenizer), or put the "
            "tokenizer's files into the model's folder"
        )
    if isinstance(prompt, str):
        tokens: list[int] = tokenizer(prompt).input_ids if prompt else []
    elif _is_conversation(prompt):
        tokens = _encode_chat(prompt, tokenizer, chat)
    else:
        raise _no_prompt(prompt)
    if not tokens:
        raise _empty()
    return tokens


def _is_token_list(prompt: Any) -> bool:
    """Token ids and nothing else; a list that holds some is refused here, where the stranger can be named."""
    items = _as_list(prompt)
    if _are(int, items):
        return True
    strangers = [item for item in items if not isinstance(item, int) or isinstance(item, bool)]
    if strangers and len(strangers) < len(items):
        raise PromptError(f"{strangers[0]!r} stands among token ids; pass ids only, or text, or messages")
    return not strangers


def _is_conversation(prompt: Any) -> bool:
    return all(isinstance(item, Mapping) for item in _as_list(prompt))


def _as_list(prompt: Any) -> list[Any]:
    if not isinstance(prompt, list):
        raise _no_prompt(prompt)
    if not prompt:
        raise _empty()
    return prompt


def _empty() -> PromptError:
    return PromptError("the prompt is empty; pass some text, token ids or messages")


def _no_prompt(prompt: Any) -> PromptError:
    if isinstance(prompt, Mapping) and "role" in prompt:
        return PromptError(f"a message belongs in a list of messages: [{reprlib.repr(prompt)}]")
    return PromptError(f"a prompt must be text, a list of token ids or a list of messages, got {reprlib.repr(prompt)}")


# -------------------------------------------------------------------------------------------------------- messages


def _encode_chat(messages: Sequence[Message], tokenizer: Any, chat: Mapping[str, Any]) -> list[int]:
    """An assistant's message at the end is continued; else the assistant's turn begins."""
    _check_messages(messages)
    if not (chat.get("chat_template") or getattr(tokenizer, "chat_template", None)):
        raise PromptError("the tokenizer has no chat template; pass the prompt as text instead of messages")
    _check_chat(chat, tokenizer)
    is_continued = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
    turn = {"add_generation_prompt": not is_continued, "continue_final_message": is_continued}
    given = {**({} if any(name in chat for name in _TURN_KEYS) else turn), **chat}
    try:
        tokens: list[int] = tokenizer.apply_chat_template(list(messages), **given, return_dict=False)
    except Exception as error:  # the template's own refusals, and whatever it makes of contents that it does not know
        raise PromptError(
            f"the chat template cannot write these messages: {type(error).__name__}: {error}. Change the messages or "
            "chat_template_kwargs, or pass the prompt as text"
        ) from error
    return tokens


def _check_messages(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise _no_message(number, message, "no role")
        if content is None and not message.get("tool_calls"):
            raise _no_message(number, message, "no content")
        if content is not None and not isinstance(content, str | list | tuple):
            raise _no_message(number, message, f"a content of type {type(content).__name__}")
    last = messages[-1]
    if last["role"] == "assistant" and last.get("content") == "" and not last.get("tool_calls"):
        raise PromptError("the last message is an assistant's without text: there is nothing to continue; leave it out")


def _no_message(number: int, message: Message, fault: str) -> PromptError:
    return PromptError(
        f"message {number} has {fault}: {reprlib.repr(dict(message))}; write it as "
        "{'role': 'user', 'content': 'some text'}"
    )


def _check_chat(chat: Mapping[str, Any], tokenizer: Any) -> None:
    """A name that the template does not read would do nothing."""
    known = {"chat_template", *_TURN_KEYS, *_names_read(chat, tokenizer)} if chat else set()
    for name in chat:
        if name in _OUR_KEYS:
            raise OptionError(f"chat_template_kwargs cannot set {name!r}, it belongs to the engine; leave it out")
        if name not in known:
            raise OptionError(
                f"the model's chat template does not read {name!r}, given in chat_template_kwargs; check its spelling "
                "or leave it out"
            )


def _names_read(chat: Mapping[str, Any], tokenizer: Any) -> set[str]:
    """By the template that these options choose; all of them where it cannot be read, which it will say itself."""
    from jinja2 import Environment, meta

    try:
        template = tokenizer.get_chat_template(chat.get("chat_template"), chat.get("tools"))
        plain = re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template)  # a mark of transformers', for training
        return meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain))
    except Exception:
        return set(chat)


def check_prompt(tokens: Sequence[int], vocab_size: int, context_length: int | None) -> None:
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        outside = next(token for token in tokens if not 0 <= token < vocab_size)
        raise PromptError(f"token id {outside} is outside the vocabulary; use ids from 0 to {vocab_size - 1}")
    if context_length is not None and len(tokens) >= context_length:
        raise PromptError(
            f"the prompt has {len(tokens)} tokens, but the model's context holds {context_length}; "
            "shorten the prompt so that there is room for at least one new token"
        )


class TextTail:
    """The text of one sequence as its tokens arrive, one piece per token.

    A piece is empty while its bytes are an unfinished character. Pieces that may turn out to be the beginning of a
    stop string are not released; when the string is complete, it and all after it are cut off. `marks` are the tokens
    that are not text, where they are known.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), marks: frozenset[int] | None = None
    ) -> None:
        self._decode, self._stops, self._marks = decode, stops, marks
        self._prefix = ""  # what `_window` to `_read` decode to
        self._tokens: list[int] = []
        self._window, self._read = 0, 0
        self.pieces: list[str] = []
        self.text = ""
        self.is_stopped = False

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def push(self, token: int) -> bool:
        """Take one token; True when it completes a stop string."""
        self._tokens.append(token)
        self._add_piece(self._new_text())
        return self.is_stopped

    def flush(self) -> None:
        """The sequence has ended: unfinished bytes come out as the tokenizer shows them."""
        if self.pieces and not self.is_stopped:
            text = self._decode(self._tokens[self._window :])
            rest = text[len(self._prefix) :]
            self.pieces[-1] += rest
            self.text += rest
            self._prefix, self._read = text, len(self._tokens)

    def at_once(self, tokens: Sequence[int]) -> str | None:
        """The text of all its tokens by one decode; None where pushing them may give another.

        It may around bytes that are not text, and after a mark, where some decoders strip a space.
        """
        if self._stops or self._tokens or self._marks is None or not self._marks.isdisjoint(tokens[:-1]):
            return None
        text = self._decode(tokens)
        return None if _UNFINISHED in text else text

    def num_released(self, has_ended: bool) -> int:
        """How many pieces may be shown."""
        if has_ended:
            return len(self.pieces)
        count, held = self._read, self._num_held()
        while held > 0:
            count -= 1
            held -= len(self.pieces[count])
        return count

    def _new_text(self) -> str:
        text = self._decode(self._tokens[self._window :])
        if text.endswith(_UNFINISHED):
            return ""
        new = text[len(self._prefix) :]
        self._window, self._read = self._read, len(self._tokens)
        self._prefix = self._decode(self._tokens[self._window :])
        return new

    def _add_piece(self, piece: str) -> None:
        known = len(self.text)
        self.pieces.append(piece)
        self.text += piece
        if not self._stops or not piece:
            return
        longest = max(len(stop) for stop in self._stops)
        hits = [self.text.find(stop, max(known - longest + 1, 0)) for stop in self._stops]
        found = [hit for hit in hits if hit >= 0]
        if found:
            self.is_stopped = True
            self._cut(min(found))

    def _cut(self, length: int) -> None:
        self.text = self.text[:length]
        for index, piece in enumerate(self.pieces):
            self.pieces[index] = piece[: max(length, 0)]
            length -= len(piece)

    def _num_held(self) -> int:
        """Length of the longest end of the text that could begin a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self._stops):
                return length
        return 0
