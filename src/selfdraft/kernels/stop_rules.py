"""A lookahead's decision after a drafted token in one kernel: in torch it takes a dozen, which shows beside a pass.

The lookaheads themselves say, in torch, what is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "max_tokens"])
def _by_chances(
    confidence_ptr, depth_ptr, product_ptr, edges_ptr, table_ptr, bar_ptr, wants_ptr, num_rows, max_tokens,
    NUM_EDGES: tl.constexpr, EDGES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, edge = tl.arange(0, ROWS), tl.arange(0, EDGES)
    is_row = row < num_rows
    confidence = tl.load(confidence_ptr + row, mask=is_row, other=0.0)
    depth = tl.load(depth_ptr + row, mask=is_row, other=1)
    edges = tl.load(edges_ptr + edge, mask=edge < NUM_EDGES, other=float("-inf"))
    is_above = edges[None, :] > confidence[:, None]
    place = NUM_EDGES - tl.sum(is_above.to(tl.int32), axis=1)
    chance = tl.load(table_ptr + place, mask=is_row, other=0.0)
    before = tl.where(depth == 1, 1.0, tl.load(product_ptr + row, mask=is_row, other=1.0))
    product = before * chance
    tl.store(product_ptr + row, product, mask=is_row)
    following = tl.load(table_ptr + NUM_EDGES + 1 + place, mask=is_row, other=0.0)
    tl.store(wants_ptr + row, (product * following > tl.load(bar_ptr)) & (depth < max_tokens), mask=is_row)


def by_chances(
    confidence: torch.Tensor,
    depth: torch.Tensor,
    product: torch.Tensor,
    edges: torch.Tensor,
    table: torch.Tensor,
    bar: torch.Tensor,
    max_tokens: int,
) -> torch.Tensor:
    """As `lookahead/tpt.py`: [rows] bool. `product` [rows] is multiplied in place, and begins again at depth 1."""
    num_rows = len(confidence)
    wants_more = torch.empty(num_rows, dtype=torch.bool, device=confidence.device)
    kernel: Any = _by_chances
    kernel[(1,)](
        confidence.contiguous(),
        depth.contiguous(),
        product,
        edges,
        table,
        bar,
        wants_more,
        num_rows,
        max_tokens,
        NUM_EDGES=len(edges),
        EDGES=triton.next_power_of_2(len(edges)),
        ROWS=triton.next_power_of_2(num_rows),
        num_warps=1,
    )
    return wants_more


@triton.jit(do_not_specialize=["max_tokens"])
def _by_classifier(
    probs_ptr, entropy_ptr, index_ptr, depth_ptr,
    hidden_weight_ptr, hidden_bias_ptr, output_weight_ptr, output_bias_ptr, wants_ptr,
    last_position, bar, max_tokens,
    NUM_TOP: tl.constexpr, FEATURES: tl.constexpr, NUM_HIDDEN: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    NUM_FEATURES: tl.constexpr = NUM_TOP + 2
    row = tl.program_id(0)
    feature, unit = tl.arange(0, FEATURES), tl.arange(0, HIDDEN)
    is_feature, is_unit = feature < NUM_FEATURES, unit < NUM_HIDDEN
    position = tl.minimum(tl.load(index_ptr + row).to(tl.float32), last_position)
    values = tl.load(probs_ptr + row * NUM_TOP + feature, mask=feature < NUM_TOP, other=0.0)
    values = tl.where(feature == NUM_TOP, tl.load(entropy_ptr + row), values)
    values = tl.where(feature == NUM_TOP + 1, position, values)
    place = unit[:, None] * NUM_FEATURES + feature[None, :]
    weight = tl.load(hidden_weight_ptr + place, mask=is_unit[:, None] & is_feature[None, :], other=0.0)
    hidden = tl.sum(weight * values[None, :], axis=1) + tl.load(hidden_bias_ptr + unit, mask=is_unit, other=0.0)
    hidden = tl.where(hidden < 0, 0.0, hidden)  # as torch: what is not a number stays so
    output = tl.load(output_weight_ptr + unit, mask=is_unit, other=0.0)
    logit = tl.sum(hidden * output, axis=0) + tl.load(output_bias_ptr)
    tl.store(wants_ptr + row, (logit >= bar) & (tl.load(depth_ptr + row) < max_tokens))


def by_classifier(
    top_probs: torch.Tensor,
    entropy: torch.Tensor,
    index: torch.Tensor,
    depth: torch.Tensor,
    network: Sequence[torch.Tensor],
    last_position: float,
    bar: float,
    max_tokens: int,
) -> torch.Tensor:
    """As `lookahead/disco.py`: [rows] bool. `network`: weight and bias of the hidden layer, then of the output."""
    num_hidden, num_features = network[0].shape
    wants_more = torch.empty(len(index), dtype=torch.bool, device=index.device)
    size = triton.next_power_of_2(num_hidden)
    kernel: Any = _by_classifier
    kernel[(len(index),)](
        *(part.contiguous() for part in (top_probs, entropy, index, depth)),
        *network,
        wants_more,
        float(last_position),
        float(bar),
        max_tokens,
        NUM_TOP=top_probs.shape[1],
        FEATURES=triton.next_power_of_2(num_features),
        NUM_HIDDEN=num_hidden,
        HIDDEN=size,
        num_warps=1 if size <= 64 else 4,
    )
    return wants_more
