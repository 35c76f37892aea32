"""What `choose` does, in torch: its specification, and what runs where Triton does not."""

from __future__ import annotations

import torch

from ..noise import gumbel_at, mixed
from ..passes import SETTINGS, WORD_COUNT, WORD_EOS, WORD_PROMPT, ChoiceKind, Columns, Drawn


class _Numbers:
    """The settings of each line, [lines] or, if they are not whole, [lines, 1]."""

    def __init__(self, columns: Columns) -> None:
        self._settings = columns.settings[_rows(columns)]

    def whole(self, name: str) -> torch.Tensor:
        return self._settings[:, SETTINGS.index(name)]

    def real(self, name: str) -> torch.Tensor:
        return self.whole(name).contiguous().view(torch.float64)[:, None]


def _rows(columns: Columns) -> torch.Tensor:
    """Each line's row."""
    return columns.places // columns.depths.shape[1]


def lines_of(columns: Columns) -> torch.Tensor:
    """[rows, width] the line of each column; where it has none, another one's."""
    (rows, width), first = columns.depths.shape, columns.first
    lines = first[:rows, None] + torch.arange(width, device=first.device)
    return torch.minimum(lines, first[1 : rows + 1, None] - 1).clamp(min=0)


def _indices(columns: Columns) -> torch.Tensor:
    """Each line's position in the generated text."""
    return (columns.indices[:, None] + columns.depths).flatten()[columns.places]


def processed(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """Raw scores [lines, vocabulary] after the rules, float32; without rules as they are."""
    if kind.has_rules:
        scores = _ruled(scores.float(), columns)
    if kind.is_masked:
        assert columns.allowed is not None
        token = torch.arange(scores.shape[-1], device=scores.device)
        bits = columns.allowed.flatten(0, 1)[columns.places][:, token // 32] >> (token % 32)
        scores = scores.float().masked_fill((bits & 1) == 0, -torch.inf)
    return scores


def _ruled(scores: torch.Tensor, columns: Columns) -> torch.Tensor:
    numbers, own = _Numbers(columns), _rows(columns)
    assert columns.words is not None
    rows, size = columns.rows[own], scores.shape[-1]
    words = columns.words[rows, :size]
    place = torch.arange(columns.path.shape[1], device=scores.device)
    # At index 0 the pass's first token is the prompt's last.
    is_generated = (columns.path >= 0) & ((place > 0) | (columns.indices[:, None] > 0))
    is_on_path = columns.on_path.flatten()[columns.places][:, None] >> place & is_generated[own]
    is_on_path &= (columns.path < size)[own]
    path = columns.path.clamp(0, size - 1)[own]
    counts = (words & WORD_COUNT).long().scatter_add(1, path, is_on_path)
    is_early = _indices(columns) < numbers.whole("min_new_tokens")
    scores = scores.masked_fill(is_early[:, None] & (words & WORD_EOS != 0), -torch.inf)
    if columns.biases is not None:
        scores = scores + columns.biases[rows, :size]
    penalty = numbers.real("repetition").float()
    is_seen = (counts > 0) | (words & WORD_PROMPT != 0)
    scores = torch.where(is_seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
    scores = scores - numbers.real("frequency").float() * counts
    return scores - numbers.real("presence").float() * (counts > 0)


def draw(scores: torch.Tensor, columns: Columns, kind: ChoiceKind, count: int) -> Drawn:
    """The `count` winners of scores [lines, vocabulary] after the rules."""
    numbers, raw = _Numbers(columns), scores.float()
    peak = torch.exp(raw.amax(-1) - raw.logsumexp(-1))
    salts = (numbers.whole("round"), kind.salt) if kind.salt else ()
    parts = (_indices(columns), *salts)
    keys = mixed(numbers.whole("key"), *parts), mixed(numbers.whole("second_key"), *parts)
    noise = torch.where(numbers.real("temperature") > 0, gumbel_at(keys, scores.shape[-1]), 0.0)
    values, tokens = (warped(scores, columns, kind).double() + noise).topk(count, dim=-1)
    return Drawn(values, tokens, peak)


def warped(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """Temperature, if any, and truncation of scores [lines, vocabulary] after the rules."""
    numbers = _Numbers(columns)
    temperature = numbers.real("temperature").float()
    scores = scores.float() / torch.where(temperature > 0, temperature, 1.0)
    if kind.has_top_k:
        scores = _keep_best(scores, numbers.whole("top_k"))
    if kind.has_top_p:
        scores = _keep_nucleus(scores, numbers.real("top_p"))
    if kind.has_min_p:
        bar = numbers.real("min_p").float().log()
        scores = scores.masked_fill(scores - scores.amax(-1, keepdim=True) < bar, -torch.inf)
    return scores


def _keep_best(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The `count` [n] best of each row, and what equals the last of them; 0: all."""
    ordered = scores.sort(dim=-1, descending=True).values
    last = ordered.gather(1, (count - 1).clamp(0, scores.shape[-1] - 1)[:, None])
    return scores.masked_fill((scores < last) & (count > 0)[:, None], -torch.inf)


def _keep_nucleus(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """A token stays if those with larger scores hold less than `top_p` [n, 1] together."""
    ordered = scores.sort(dim=-1, descending=True).values
    probs = ordered.double().softmax(-1)
    is_kept = probs.cumsum(-1) - probs < top_p
    num_kept = is_kept.sum(-1, keepdim=True).clamp(min=1)
    least = torch.where(top_p < 1, ordered.gather(1, num_kept - 1), -torch.inf)
    return scores.masked_fill(scores < least, -torch.inf)
