"""Text at the edges of the engine: prompts to tokens, tokens to text as they come, stop strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import PromptError

Message = Mapping[str, Any]
OnePrompt = str | Sequence[int] | Sequence[Message]
Batch = list[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]
Prompt = OnePrompt | Batch

_UNFINISHED = "�"


def encode_prompts(prompt: Prompt, tokenizer: Any) -> tuple[list[list[int]], bool]:
    """(token lists, whether the caller gave a batch)."""
    if isinstance(prompt, str) or _is_conversation(prompt) or _is_token_list(prompt):
        return [_encode_one(prompt, tokenizer)], False
    return [_encode_one(item, tokenizer) for item in _as_list(prompt)], True


def _encode_one(prompt: Any, tokenizer: Any) -> list[int]:
    if not isinstance(prompt, str) and _is_token_list(prompt):
        return list(prompt)
    if tokenizer is None:
        raise PromptError(
            "this engine has no tokenizer; pass token ids, build it as Engine(model, tokenizer), or put the "
            "tokenizer's files into the model's folder"
        )
    if isinstance(prompt, str):
        tokens: list[int] = tokenizer(prompt).input_ids if prompt else []
    elif _is_conversation(prompt):
        tokens = _encode_chat(prompt, tokenizer)
    else:
        raise _no_prompt(prompt)
    if not tokens:
        raise PromptError("the prompt is empty; pass some text, token ids or messages")
    return tokens


def _is_token_list(prompt: Any) -> bool:
    """Token ids and nothing else; a list that holds some is refused here, where the stranger can be named."""
    items = _as_list(prompt)
    strangers = [item for item in items if not isinstance(item, int) or isinstance(item, bool)]
    if strangers and len(strangers) < len(items):
        raise PromptError(f"{strangers[0]!r} stands among token ids; pass ids only, or text, or messages")
    return not strangers


def _is_conversation(prompt: Any) -> bool:
    return all(isinstance(item, Mapping) for item in _as_list(prompt))


def _as_list(prompt: Any) -> list[Any]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, str | bytes):
        raise _no_prompt(prompt)
    if not prompt:
        raise PromptError("the prompt is empty; pass some text, token ids or messages")
    return list(prompt)


def _no_prompt(prompt: Any) -> PromptError:
    return PromptError(f"a prompt must be text, a list of token ids or a list of messages, got {prompt!r}")


def _encode_chat(messages: Any, tokenizer: Any) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError("the tokenizer has no chat template; pass the prompt as text instead of messages")
    tokens: list[int] = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    return tokens


def check_prompt(tokens: Sequence[int], vocab_size: int, context_length: int | None) -> None:
    outside = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise PromptError(f"token id {outside} is outside the vocabulary; use ids from 0 to {vocab_size - 1}")
    if context_length is not None and len(tokens) >= context_length:
        raise PromptError(
            f"the prompt has {len(tokens)} tokens, but the model's context holds {context_length}; "
            "shorten the prompt so that there is room for at least one new token"
        )


class TextTail:
    """The text of one sequence as its tokens arrive, one piece per token.

    A piece is empty while its bytes are an unfinished character. Pieces that may turn out to be the beginning of a
    stop string are not released; when the string is complete, it and all after it are cut off.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, stops
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
            rest = self._decode(self._tokens[self._window :])[len(self._decoded_prefix()) :]
            self.pieces[-1] += rest
            self.text += rest
            self._read = len(self._tokens)

    def num_released(self, has_ended: bool) -> int:
        """How many pieces may be shown."""
        if has_ended:
            return len(self.pieces)
        count, held = self._read, self._num_held()
        while held > 0:
            count -= 1
            held -= len(self.pieces[count])
        return count

    def _decoded_prefix(self) -> str:
        return self._decode(self._tokens[self._window : self._read])

    def _new_text(self) -> str:
        text = self._decode(self._tokens[self._window :])
        if text.endswith(_UNFINISHED):
            return ""
        new = text[len(self._decoded_prefix()) :]
        self._window, self._read = self._read, len(self._tokens)
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
