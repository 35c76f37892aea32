"""Texts of a form that was asked for: what a grammar does not allow has no chance. llguidance knows the grammar."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from ..errors import OptionError

_MAX_KNOWN = 256
"""Texts whose matchers are remembered."""
_SPACES = {"whitespace_pattern": r"[ \t\n\r]{0,32}"}
"""Between the parts of JSON: without a bound a small model goes on with them for ever."""


class Grammar:
    """A processor: a pure function of the text. What it remembers of texts only saves time.

    A matcher is copied before it reads a token, which takes microseconds; one that is rolled back far may take another
    text for the one it had read (llguidance 1.9).
    """

    def __init__(self, tokenizer: LLTokenizer, grammar: str, num_prompt_tokens: int) -> None:
        self._root, self._num_prompt_tokens = LLMatcher(tokenizer, grammar), num_prompt_tokens
        self._known: OrderedDict[tuple[int, ...], LLMatcher] = OrderedDict()  # after these tokens

    def __call__(self, prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """A drafted text that breaks the grammar is never accepted: whatever its scores are."""
        matcher = self._after(tuple(prefix[0, self._num_prompt_tokens :].tolist()))
        if matcher is None:
            return scores
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = torch.zeros(scores.shape[1], dtype=torch.bool)
        known = min(len(bits), scores.shape[1])
        allowed[:known] = torch.from_numpy(bits[:known].astype(bool))
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)

    def _after(self, tokens: tuple[int, ...]) -> LLMatcher | None:
        """None: the grammar does not allow them."""
        length = next((length for length in range(len(tokens), 0, -1) if tokens[:length] in self._known), 0)
        matcher = self._known[tokens[:length]] if length else self._root
        for place in range(length, len(tokens)):
            matcher = matcher.deep_copy()
            if not matcher.try_consume_tokens([tokens[place]]):
                return None
            self._known[tokens[: place + 1]] = matcher
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return matcher


class Grammars:
    """Of one tokenizer; it takes about a second to be read, when it is first asked for."""

    def __init__(self, tokenizer: Any, eos_tokens: Collection[int]) -> None:
        self._source, self._eos_tokens = tokenizer, eos_tokens
        self._tokenizer: LLTokenizer | None = None

    def grammar(self, asked: Mapping[str, Any]) -> str:
        """Of `response_format`: a JSON object, one of a schema, or a grammar of its own. OptionError: there is none."""
        if not self._eos_tokens:
            raise OptionError("response_format needs a model that can end a text; this one has no end-of-text token")
        try:
            written = _written(asked)
            fault = LLMatcher.validate_grammar(written, self._known())
        except ValueError as error:
            fault = str(error)
        if fault:
            raise OptionError(f"response_format cannot be followed: {fault.splitlines()[0]}")
        return written

    def processor(self, grammar: str, num_prompt_tokens: int) -> Grammar:
        return Grammar(self._known(), grammar, num_prompt_tokens)

    def _known(self) -> LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = from_tokenizer(self._source, eos_token=sorted(self._eos_tokens))
        return self._tokenizer


def _written(asked: Mapping[str, Any]) -> str:
    """As llguidance takes it."""
    if asked["type"] != "grammar":
        schema = asked["json_schema"]["schema"] if asked["type"] == "json_schema" else {"type": "object"}
        has_own = isinstance(schema, dict) and "x-guidance" in schema  # llguidance's options
        return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), None if has_own else _SPACES))
    definition = asked["grammar"]["definition"]
    is_regex = asked["grammar"]["syntax"] == "regex"
    return str(LLMatcher.grammar_from_regex(definition) if is_regex else LLMatcher.grammar_from_lark(definition))
