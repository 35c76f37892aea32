"""Text at the edges: pieces as tokens come, stop strings, and every form a prompt may have."""

from __future__ import annotations

import copy
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pico import pico_tokenizer
from selfdraft.engine.text import TextTail, encode_prompts
from selfdraft.errors import PromptError

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


def decode(tokens) -> str:
    return pico_tokenizer().decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def encode(text: str) -> list[int]:
    return pico_tokenizer()(text).input_ids


def byte_token(byte: int) -> int:
    """The token of a single byte."""
    return pico_tokenizer().convert_tokens_to_ids(bytes_to_unicode()[byte])


def tail_of(tokens, stops=()) -> TextTail:
    tail = TextTail(decode, stops)
    for token in tokens:
        if tail.push(token):
            break
    return tail


texts = st.one_of(
    st.text(alphabet="aeth rinéü€🙂\n", max_size=30), st.text(max_size=20), st.text(alphabet="🙂😀é", max_size=8)
)
token_lists = st.lists(st.integers(0, len(pico_tokenizer()) - 1), max_size=30)


# -------------------------------------------------------------------------------------------------------- pieces


@given(texts)
@example("🙂🙂éé the rain")
@settings(max_examples=200)
def test_joined_pieces_are_the_text(text):
    tokens = encode(text)
    tail = tail_of(tokens)
    tail.flush()
    assert "".join(tail.pieces) == tail.text == decode(tokens) == text
    assert len(tail.pieces) == tail.num_tokens == len(tokens)


@given(token_lists)
@settings(max_examples=200)
def test_joined_pieces_are_the_decoded_tokens_whatever_they_are(tokens):
    """Bytes that are no text, special tokens, characters cut in the middle."""
    tail = tail_of(tokens)
    assert "�" not in tail.text[-1:]
    tail.flush()
    tail.flush()
    assert "".join(tail.pieces) == tail.text == decode(tokens)


@pytest.mark.parametrize("character", ["é", "€", "🙂"])
def test_a_piece_is_empty_until_its_character_is_whole(character):
    tokens = [byte_token(byte) for byte in character.encode()]
    tail = tail_of([*tokens, *encode("a")])
    assert tail.pieces == [*[""] * (len(tokens) - 1), character, "a"]


def test_tokens_that_end_one_character_and_begin_the_next():
    vocabulary = pico_tokenizer().get_vocab()
    tail = tail_of([vocabulary["Ã"], vocabulary["©Ã"], vocabulary["©"]])
    assert tail.pieces == ["", "", "éé"]


def test_a_leading_space_is_kept_where_decoders_strip_it():
    """SentencePiece-like: decoded alone, a word loses the space before it."""
    words = Tokenizer(models.WordLevel({"▁the": 0, "▁rain": 1, "s": 2}, unk_token="s"))
    words.decoder = decoders.Metaspace()
    tail = TextTail(words.decode)
    for token in (0, 1, 2, 1):
        tail.push(token)
    assert tail.pieces == ["the", " rain", "s", " rain"]


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_unfinished_bytes_are_shown_at_the_end_as_the_tokenizer_does(num_bytes):
    """Not before: they belong to pieces that are still empty and could not be shown again when they are whole."""
    tokens = [*encode("the"), *(byte_token(byte) for byte in "🙂".encode()[:num_bytes])]
    tail = tail_of(tokens)
    assert tail.text == "the"
    assert tail.num_released(has_ended=False) == 1
    tail.flush()
    assert tail.text == "".join(tail.pieces) == decode(tokens)
    assert tail.text.endswith("�")
    assert tail.num_released(has_ended=True) == 1 + num_bytes


def test_special_tokens_have_no_text():
    assert tail_of([*encode("the"), pico_tokenizer().eos_token_id]).pieces == ["the", ""]


# ------------------------------------------------------------------------------------------------------ at once


def tokenizer_of(words, decoder):
    """Its last token is special."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=words[-1])


BYTES = ("<0xC3>", "<0xA9>", "<0x41>", "<0xFF>")
SENTENCE_PIECE = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
TOKENIZERS = {
    "byte-level": pico_tokenizer(),
    "byte-fallback": tokenizer_of(["▁the", "▁", "s", "▁rain", *BYTES, "</s>"], SENTENCE_PIECE),
    "metaspace": tokenizer_of(["▁the", "▁", "s", "▁rain", "</s>"], decoders.Metaspace()),
    "word-piece": tokenizer_of(["the", "##re", "s", "##in", ".", "[SEP]"], decoders.WordPiece()),
    "bpe": tokenizer_of(["the</w>", "r", "ain</w>", "</s>"], decoders.BPEDecoder()),
}


def tail_for(tokenizer) -> TextTail:
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return TextTail(lambda tokens: tokenizer.decode(tokens, **options), (), frozenset(tokenizer.added_tokens_decoder))


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=150)
def test_a_text_read_at_once_is_the_text_read_token_by_token(kind, data):
    """Whatever the tokens are: where it could be another text, it is not read at once."""
    tokenizer = TOKENIZERS[kind]
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=12))
    tail = tail_for(tokenizer)
    found = tail.at_once(tokens)
    for token in tokens:
        tail.push(token)
    tail.flush()
    has_mark = any(token in tokenizer.all_special_ids for token in tokens[:-1])
    assert found is None if has_mark or "�" in tail.text else found == tail.text


def test_what_is_not_read_at_once():
    """Where it would make a difference: a byte that is no text takes its neighbours along, a space after a mark."""
    tokenizer = TOKENIZERS["byte-fallback"]
    for words, whole, pieces in (("s <0x41> <0xFF> s", "s��s", "sA�s"), ("s </s> ▁rain", "s rain", "srain")):
        tokens, tail = tokenizer.convert_tokens_to_ids(words.split()), tail_for(tokenizer)
        assert tail.at_once(tokens) is None
        for token in tokens:
            tail.push(token)
        assert (tokenizer.decode(tokens, skip_special_tokens=True), tail.text) == (whole, pieces)


# -------------------------------------------------------------------------------------------------- stop strings


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("the rain and", [" rain"], "the"),  # one token
        ("the rain and", ["n a"], "the rai"),  # over two tokens, cutting into a piece
        ("the rain and", ["e rain an"], "th"),  # over three
        ("the rain and", ["the"], ""),  # at the very beginning
        ("the rain and", ["and", "rain"], "the "),  # whichever comes first
        ("the rain and", ["rain", "the rain"], ""),  # complete together: the one that begins first
        ("the rain and", ["sun"], "the rain and"),
        ("aab", ["ab"], "a"),  # a false start
        ("xéé🙂y", ["é🙂"], "xé"),
        ("a\n\nb", ["\n\n"], "a"),
    ],
)
def test_the_text_ends_before_a_stop_string(text, stops, kept):
    tail = tail_of(encode(text), stops)
    tail.flush()
    assert tail.text == "".join(tail.pieces) == kept
    assert tail.is_stopped is (kept != text)


def test_push_says_when_a_stop_string_is_complete():
    tail = TextTail(decode, ["in an"])
    assert [tail.push(token) for token in encode("the rain and")] == [False, False, True]
    assert tail.pieces == ["the", " ra", ""]


def test_a_beginning_of_a_stop_string_is_held_back():
    tail, released = TextTail(decode, ["rain and", "!"]), []
    for token in encode("the rain in"):
        tail.push(token)
        released.append(tail.num_released(has_ended=False))
    assert tail.pieces == ["the", " rain", " ", "in"]
    assert released == [1, 1, 1, 4]
    tail = tail_of(encode("the rain"), ["rain and"])
    assert tail.num_released(has_ended=False) == 1
    assert tail.num_released(has_ended=True) == 2


@given(texts, st.lists(st.text(alphabet="aeth rin🙂\n", min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=300)
def test_what_was_released_is_never_taken_back(text, stops):
    tokens, shown = encode(text), ""
    tail = TextTail(decode, stops)
    for token in tokens:
        has_ended = tail.push(token)
        now = "".join(tail.pieces[: tail.num_released(has_ended)])
        assert now.startswith(shown)
        shown = now
        if has_ended:
            break
    tail.flush()
    # A stop string is found when its last token has come, so hits are judged over what was read until then.
    read = decode(tokens[: tail.num_tokens])
    hits = [read.find(stop) for stop in stops if stop in read]
    assert tail.is_stopped is bool(hits)
    assert tail.text == "".join(tail.pieces) == read[: min(hits, default=len(read))]
    assert tail.text.startswith(shown)
    assert not any(stop in tail.text for stop in stops)


# ------------------------------------------------------------------------------------------------------- prompts


def chat_tokenizer():
    tokenizer = copy.deepcopy(pico_tokenizer())
    tokenizer.chat_template = TEMPLATE
    return tokenizer


MESSAGES = [{"role": "user", "content": "the rain"}]
AS_TEXT = "<user>the rain<bot>"


@pytest.mark.parametrize(
    ("prompt", "expected", "is_batch"),
    [
        ("the rain", ["the rain"], False),
        (["the", "rain and"], ["the", "rain and"], True),
        (["the"], ["the"], True),
        ([5, 6, 7], [[5, 6, 7]], False),
        ((5, 6), [[5, 6]], False),
        ([[5, 6], [7]], [[5, 6], [7]], True),
        (MESSAGES, [AS_TEXT], False),
        ([MESSAGES, MESSAGES], [AS_TEXT, AS_TEXT], True),
        (["the", [5, 6], MESSAGES], ["the", [5, 6], AS_TEXT], True),
    ],
    ids=str,
)
def test_every_form_of_a_prompt(prompt, expected, is_batch):
    tokens = [encode(item) if isinstance(item, str) else item for item in expected]
    assert encode_prompts(prompt, chat_tokenizer()) == (tokens, is_batch)


@given(st.lists(st.one_of(texts, st.text(max_size=200)), min_size=1, max_size=6))
@settings(max_examples=50)
def test_a_list_of_texts_is_encoded_as_one_by_one(batch):
    filled = [text or "the" for text in batch]
    assert encode_prompts(filled, pico_tokenizer()) == ([encode(text) for text in filled], True)


EMPTY = "the prompt is empty; pass some text, token ids or messages"
NO_PROMPT = "must be text, a list of token ids or a list of messages, got "
AMONG_IDS = " stands among token ids; pass ids only, or text, or messages"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        *((prompt, EMPTY) for prompt in ("", [], [""], [[]], ["the", ""], [[5], []])),
        (5, f"{NO_PROMPT}5"),
        (None, f"{NO_PROMPT}None"),
        (b"ab", f"{NO_PROMPT}b'ab'"),
        (MESSAGES[0], "a message belongs in a list of messages: [{"),
        ([1.5], f"{NO_PROMPT}1.5"),
        ([None], f"{NO_PROMPT}None"),
        ([True], f"{NO_PROMPT}True"),
        ([["the"]], f"{NO_PROMPT}['the']"),
        ([5, "the"], f"'the'{AMONG_IDS}"),
        ([[0.5, 1]], f"0.5{AMONG_IDS}"),
        ([True, 1], f"True{AMONG_IDS}"),
        (MESSAGES, "no chat template; pass the prompt as text"),
    ],
    ids=str,
)
def test_what_is_no_prompt_is_refused(prompt, message):
    with pytest.raises(PromptError, match=re.escape(message)):
        encode_prompts(prompt, pico_tokenizer())


@pytest.mark.parametrize("prompt", ["the", ["the"], MESSAGES], ids=str)
def test_text_needs_a_tokenizer(prompt):
    assert encode_prompts([5, 6], None) == ([[5, 6]], False)
    with pytest.raises(PromptError, match=r"no tokenizer; pass token ids, build it as Engine\(model, tokenizer\)"):
        encode_prompts(prompt, None)
