"""Events of texts as OpenAI's objects: whole answers, pieces of streams, figures."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage, ChatCompletionTokenLogprob
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall, ChoiceDeltaToolCallFunction
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.chat.chat_completion_message_function_tool_call import ChatCompletionMessageFunctionToolCall
from openai.types.chat.chat_completion_message_function_tool_call import Function as CalledFunction
from openai.types.chat.chat_completion_token_logprob import TopLogprob
from openai.types.completion_choice import Logprobs
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails
from pydantic import BaseModel

from ..engine.live import Piece
from ..engine.session import Event
from ..types import Generation, TokenLogprobs
from .tools import Call, Reader

Decode = Callable[[int], str]
"""The text of one token."""
Reason = Literal["stop", "length"]
CallReason = Literal["stop", "length", "tool_calls"]


def reason_of(generation: Generation) -> Reason:
    return "stop" if generation.finish_reason in ("eos", "stop") else "length"


def speculation_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """How drafts fared, in the words of vLLM's `metrics.speculative_decoding`."""
    rounds = [step for one in generations for step in one.steps if step.draft.tokens]
    drafted = [len(step.draft.tokens) for step in rounds]
    accepted = [step.verdict.num_accepted for step in rounds]
    counts = Counter(accepted)
    return {
        "num_spec_steps": len(rounds),
        "num_draft_tokens": sum(drafted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_spec_tokens": max(drafted, default=0),
        "mean_acceptance_length": 1 + sum(accepted) / max(len(rounds), 1),
        "draft_acceptance_rate": sum(accepted) / max(sum(drafted), 1),
        "acceptance_histogram": [counts[number] for number in range(max(counts, default=-1) + 1)],
    }


def usage_of(generations: Sequence[Generation], speculation: Mapping[str, Any]) -> CompletionUsage:
    """Of all texts; those of one prompt count it once."""
    prompt, completion = generations[0].num_prompt_tokens, sum(len(one.tokens) for one in generations)
    cached = min(one.stats.cached_prompt_tokens for one in generations)
    accepted = speculation["num_accepted_draft_tokens"]
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=speculation["num_draft_tokens"] - accepted,
        ),
    )


def total(usages: Sequence[CompletionUsage]) -> CompletionUsage:
    """Of several prompts in one request."""
    first, *rest = usages
    for one in rest:
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            setattr(first, name, getattr(first, name) + getattr(one, name))
        for part in ("prompt_tokens_details", "completion_tokens_details"):
            mine, other = getattr(first, part), getattr(one, part)
            for name in mine.model_fields_set:
                setattr(mine, name, getattr(mine, name) + getattr(other, name))
    return first


class Answer(ABC):
    """One request's: `index` numbers all of its texts, over all prompts.

    `tells_always`: a stream ends with what was counted, asked for or not; `has_mark`: and with `[DONE]`.
    """

    tells_always, has_mark = False, True

    def __init__(self, model: str, decode: Decode, prefix: str) -> None:
        self.head: dict[str, Any] = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._decode = decode

    @abstractmethod
    def begin(self, index: int) -> Sequence[BaseModel]:
        """Of a stream: what comes before the first piece of a text."""

    @abstractmethod
    def piece(self, told: Event, index: int) -> Sequence[BaseModel]: ...

    @abstractmethod
    def last(self, figures: Mapping[str, Any]) -> Sequence[BaseModel]:
        """Of a stream: what was counted."""

    @abstractmethod
    def whole(self, generations: Sequence[Generation], figures: Mapping[str, Any]) -> BaseModel: ...

    def figures(self, groups: Sequence[Sequence[Generation]]) -> dict[str, Any]:
        """`groups`: the texts of each prompt."""
        told = [speculation_of(group) for group in groups]
        usage = total([usage_of(group, one) for group, one in zip(groups, told, strict=True)])
        whole = speculation_of([one for group in groups for one in group]) if len(groups) > 1 else told[0]
        return {"usage": usage, "metrics": {"speculative_decoding": whole}}


class ChatAnswer(Answer):
    """`reader`: makes one for each text, of its calls."""

    def __init__(self, model: str, decode: Decode, reader: Callable[[], Reader] | None = None) -> None:
        super().__init__(model, decode, "chatcmpl")
        self._new_reader, self._readers, self._calling = reader, dict[int, Reader](), set[int]()

    def begin(self, index: int) -> Sequence[ChatCompletionChunk]:
        delta = ChoiceDelta(role="assistant", content="")
        return [self._chunk(ChunkChoice(index=index, delta=delta, finish_reason=None))]

    def piece(self, told: Event, index: int) -> Sequence[ChatCompletionChunk]:
        is_over = told.generation is not None
        text, calls = self._read(told.text, index, is_over)
        content = self._logprobs([piece.logprobs for piece in told.pieces])
        delta = ChoiceDelta(content=text) if text or not (is_over or calls) else ChoiceDelta()
        if calls:
            delta.tool_calls = [_piece_of(call) for call in calls]
        choice = ChunkChoice(
            index=index,
            delta=delta,
            finish_reason=self._reason(told.generation, index) if told.generation else None,
            logprobs=ChunkLogprobs(content=content, refusal=None) if content is not None else None,
        )
        return [self._chunk(choice)]

    def last(self, figures: Mapping[str, Any]) -> Sequence[ChatCompletionChunk]:
        return [ChatCompletionChunk(**self.head, object="chat.completion.chunk", choices=[], **figures)]

    def whole(self, generations: Sequence[Generation], figures: Mapping[str, Any]) -> ChatCompletion:
        choices = [self._choice(index, one) for index, one in enumerate(generations)]
        return ChatCompletion(**self.head, object="chat.completion", choices=choices, **figures)

    def _chunk(self, choice: ChunkChoice) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self.head, object="chat.completion.chunk", choices=[choice])

    def _choice(self, index: int, one: Generation) -> Choice:
        content = self._logprobs(one.logprobs or ()) if one.logprobs is not None else None
        text, calls = self._read(one.text, index, True)
        message = ChatCompletionMessage(role="assistant", content=text or (None if calls else ""), refusal=None)
        if calls:
            message.tool_calls = [_whole_of(call) for call in calls]
        return Choice(
            index=index,
            message=message,
            finish_reason=self._reason(one, index),
            logprobs=None if content is None else ChoiceLogprobs(content=content, refusal=None),
        )

    def _read(self, text: str, index: int, is_over: bool) -> tuple[str, list[Call]]:
        if self._new_reader is None:
            return text, []
        if index not in self._readers:
            self._readers[index] = self._new_reader()
        content, calls = self._readers[index].read(text, is_over)
        self._calling |= {index} if calls else set()
        return content, calls

    def _reason(self, one: Generation, index: int) -> CallReason:
        reason = reason_of(one)
        is_call = reason == "stop" and index in self._calling
        return self._readers[index].ends_as if is_call else reason

    def _logprobs(self, told: Sequence[TokenLogprobs | None]) -> list[ChatCompletionTokenLogprob] | None:
        known = [one for one in told if one is not None]
        if len(known) < len(told) or not told:
            return None
        return [
            ChatCompletionTokenLogprob(
                **self._token(one.token, one.logprob), top_logprobs=[TopLogprob(**self._token(*top)) for top in one.top]
            )
            for one in known
        ]

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._decode(token)
        return {"token": text, "bytes": list(text.encode()), "logprob": max(logprob, -9999.0)}


def _piece_of(call: Call) -> ChoiceDeltaToolCall:
    function = ChoiceDeltaToolCallFunction(arguments=call.arguments, **({"name": call.name} if call.name else {}))
    head: dict[str, Any] = {"id": call.id, "type": "function"} if call.id else {}
    return ChoiceDeltaToolCall(index=call.index, function=function, **head)


def _whole_of(call: Call) -> ChatCompletionMessageFunctionToolCall:
    function = CalledFunction(name=call.name or "", arguments=call.arguments)
    return ChatCompletionMessageFunctionToolCall(id=call.id or "", type="function", function=function)


class CompletionAnswer(Answer):
    def __init__(self, model: str, decode: Decode) -> None:
        super().__init__(model, decode, "cmpl")
        self._offsets: dict[int, int] = {}

    def begin(self, index: int) -> Sequence[Completion]:
        return ()

    def piece(self, told: Event, index: int) -> Sequence[Completion]:
        reason = reason_of(told.generation) if told.generation else None
        choice = CompletionChoice.model_construct(
            index=index, text=told.text, finish_reason=reason, logprobs=self._logprobs(told.pieces, index)
        )
        return [Completion(**self.head, object="text_completion", choices=[choice])]

    def last(self, figures: Mapping[str, Any]) -> Sequence[Completion]:
        return [Completion(**self.head, object="text_completion", choices=[], **figures)]

    def whole(self, generations: Sequence[Generation], figures: Mapping[str, Any]) -> Completion:
        choices = [self._choice(index, one) for index, one in enumerate(generations)]
        return Completion(**self.head, object="text_completion", choices=choices, **figures)

    def _choice(self, index: int, one: Generation) -> CompletionChoice:
        told = one.logprobs or (None,) * len(one.tokens)
        rows = zip(one.pieces, one.tokens, one.sources, told, strict=False)
        pieces = [Piece(text, token, source, logprob) for text, token, source, logprob in rows]
        logprobs = self._logprobs(pieces, index) if one.logprobs is not None else None
        return CompletionChoice(index=index, text=one.text, finish_reason=reason_of(one), logprobs=logprobs)

    def _logprobs(self, pieces: Sequence[Piece], index: int) -> Logprobs | None:
        if not pieces or pieces[0].logprobs is None:
            return None
        known = [(piece.text, piece.logprobs) for piece in pieces if piece.logprobs is not None]
        offsets = []
        for text, _ in known:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(text)
        return Logprobs(
            tokens=[self._decode(one.token) for _, one in known],
            token_logprobs=[max(one.logprob, -9999.0) for _, one in known],
            top_logprobs=[{self._decode(token): max(value, -9999.0) for token, value in one.top} for _, one in known],
            text_offset=offsets,
        )
