"""Decoder: nothing skipped is `model(...)`, a skipped sub-layer is the model with that branch zeroed."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LlamaForCausalLM, OPTConfig, OPTForCausalLM

from cases import SIMILAR
from pico import CONTEXT_LENGTH, FAMILIES, NUM_LAYERS, VARIANTS, VOCAB_SIZE, WINDOW, pico
from selfdraft.errors import OptionError, SelfTestError, UnsupportedModelError
from selfdraft.models.attend import attend, attend_by_groups
from selfdraft.models.decoder import Decoder
from selfdraft.models.eager import EagerRunner
from selfdraft.models.families import FAMILIES as ROWS
from selfdraft.models.joined import JoinedBranch, JoinedNorm
from selfdraft.models.placement import Placement
from selfdraft.passes import PassRequest
from selfdraft.types import SkipSet

NUM_TOKENS = 30  # more than three windows
PROJECTIONS = ("self_attn.o_proj", "mlp.down_proj")
"""The last modules of a layer's attention and MLP branch: what comes out of them is added to the stream."""
NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
LAST_MODULES = {
    **dict.fromkeys(("gemma2", "gemma3_text", "gemma3", "olmo2", "olmo3", "exaone4"), NORMS),
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "qwen3_moe": ("self_attn.o_proj", "mlp"),  # experts here, a plain MLP there
    "starcoder2": ("self_attn.o_proj", "mlp.c_proj"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
    "glm4": ("post_self_attn_layernorm", "post_mlp_layernorm"),
    "mixtral": ("self_attn.o_proj", "mlp"),
    "gpt_oss": ("self_attn.o_proj", "mlp.experts"),
}
OTHER_CONFIGS = (
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"head_dim": 12, "num_key_value_heads": 1}),
    ("llama", {"attn_implementation": "eager"}),
    ("llama", {"num_hidden_layers": 1}),
    ("qwen2-sliding", {"attn_implementation": "eager"}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "attn_implementation": "eager"}),
    ("gemma2", {"final_logit_softcapping": None, "attn_logit_softcapping": None}),
    ("gemma3_text", {"final_logit_softcapping": None, "attention_bias": True, "tie_word_embeddings": True}),
    ("mistral", {"sliding_window": None, "head_dim": None}),
    ("qwen3", {"use_sliding_window": False, "attention_bias": True}),
    ("qwen3_moe", {"use_sliding_window": False, "decoder_sparse_step": 2, "norm_topk_prob": True}),
    ("phi3", {"sliding_window": None, "num_key_value_heads": 4}),
    ("smollm3", {"use_sliding_window": False, "attention_bias": True, "mlp_bias": True}),
    ("starcoder2", {"sliding_window": None, "use_bias": False, "tie_word_embeddings": True}),
    ("olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
    ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("granite", {"embedding_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("gpt_neox", {"attention_bias": False, "tie_word_embeddings": True}),
    ("exaone4", {"sliding_window": None, "layer_types": ("full_attention",) * NUM_LAYERS}),
    ("seed_oss", {"attention_bias": False, "attention_out_bias": False, "mlp_bias": False}),
    ("glm4", {"attention_bias": False, "hidden_act": "gelu_pytorch_tanh"}),
    ("cohere2", {"attention_bias": False, "tie_word_embeddings": True}),
    ("mixtral", {"sliding_window": None}),
)
NOISE = {"smollm3": 3e-4}
"""Its float32 scores are 7e-5 from those in float64, token by token 1.2e-4 (modules) and 0.9e-4 (joined)."""
JOINABLE = tuple(name for name in VARIANTS if ROWS[name.partition("-")[0]].parts is not None)
CASES = [(variant, False) for variant in VARIANTS] + [(variant, True) for variant in JOINABLE]
MODULES_OF_JOINED = [(variant, False) for variant in JOINABLE]
OTHER_CASES = [(*case, False) for case in OTHER_CONFIGS] + [
    (*case, True) for case in OTHER_CONFIGS if case[0] in JOINABLE
]
WINDOWED = (
    "qwen2-sliding", "gemma2", "gemma3_text", "gemma3", "mistral", "qwen3", "qwen3_moe", "phi3", "smollm3",
    "starcoder2", "olmo3", "exaone4", "ministral", "cohere2", "mixtral", "gpt_oss",
)  # fmt: skip
EAGER = ("gemma2", "gpt_oss")  # sdpa has neither a soft cap nor sinks
by_case = pytest.mark.parametrize(
    ("variant", "allow_joined"), CASES, ids=[f"{name}-joined" if joined else name for name, joined in CASES]
)
by_path = pytest.mark.parametrize("allow_joined", [False, True], ids=["modules", "joined"])
by_variant = pytest.mark.parametrize("variant", VARIANTS)


@functools.cache
def reference(variant: str) -> Any:
    """The same model, never attached to."""
    return copy.deepcopy(pico(variant))


@functools.cache
def decoder_of(variant: str, allow_joined: bool = True) -> Decoder:
    return Decoder(pico(variant), allow_joined=allow_joined)


def blocks_of(model: Any) -> Any:
    return attrgetter(ROWS[model.config.model_type].layers)(model)


def tokens_of(num_rows: int = 1, num_tokens: int = NUM_TOKENS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return torch.randint(0, VOCAB_SIZE, (num_rows, num_tokens), generator=generator)


@torch.inference_mode()
def run(decoder: Decoder, tokens: torch.Tensor, widths: Sequence[int] = (NUM_TOKENS,), **options: Any) -> torch.Tensor:
    """Scores of `tokens`, run in parts of these widths."""
    cache, start, scores = decoder.new_cache(len(tokens), tokens.shape[1]), 0, []
    for width in widths:
        placement = Placement.chain([start] * len(tokens), width, decoder.device)
        scores.append(decoder.forward(tokens[:, start : start + width], placement, cache, **options).scores)
        start += width
    return torch.cat(scores, 1)


@torch.inference_mode()
def captured(decoder: Decoder, tokens: torch.Tensor, points: Sequence[str], **options: Any) -> dict[str, torch.Tensor]:
    placement = Placement.chain([0] * len(tokens), NUM_TOKENS, decoder.device)
    output = decoder.forward(tokens, placement, decoder.new_cache(len(tokens), NUM_TOKENS), capture=points, **options)
    assert set(output.captured) == set(points)
    assert output.scores.shape[1] == (NUM_TOKENS if options.get("needs_scores", True) else 0)
    return output.captured


@contextlib.contextmanager
def zeroed(model: Any, skip: SkipSet) -> Iterator[None]:
    """`model` with the output of these branches zeroed."""
    blocks = blocks_of(model)
    attention, mlp = LAST_MODULES.get(model.config.model_type, PROJECTIONS)
    modules = [attrgetter(attention)(blocks[layer]) for layer in skip.attention]
    modules += [attrgetter(mlp)(blocks[layer]) for layer in skip.mlp]
    hooks = [module.register_forward_hook(lambda *call: torch.zeros_like(call[-1])) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def expected_scores(model: Any, tokens: torch.Tensor, skip: SkipSet = SkipSet()) -> torch.Tensor:  # noqa: B008
    with zeroed(model, skip):
        return model(tokens, use_cache=False).logits


def assert_same(found: torch.Tensor, expected: torch.Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=atol)


# ---------------------------------------------------------------------------------------------- nothing skipped


@by_case
@pytest.mark.parametrize(
    "widths",
    [(NUM_TOKENS,), (1,) * NUM_TOKENS, (7, 1, 1, 12, 3, 6)],
    ids=["whole", "token by token", "in chunks"],
)
def test_nothing_skipped_is_the_model(variant, allow_joined, widths):
    tokens = tokens_of(2)
    found, expected = (
        run(decoder_of(variant, allow_joined), tokens, widths),
        expected_scores(reference(variant), tokens),
    )
    assert_same(found, expected, NOISE.get(variant, 1e-4))


@pytest.mark.parametrize(("variant", "overrides", "allow_joined"), OTHER_CASES, ids=str)
def test_other_configs_are_the_model(variant, overrides, allow_joined):
    model, tokens = pico(variant, **overrides), tokens_of()
    expected = expected_scores(copy.deepcopy(model), tokens)
    assert_same(run(Decoder(model, allow_joined=allow_joined), tokens, (20, 1, 9)), expected)


@by_variant
def test_eager_attention_is_the_model(variant):
    """All other tests take what transformers chooses: sdpa, except for gemma2 and gpt_oss."""
    model, tokens = copy.deepcopy(reference(variant)), tokens_of()
    model.set_attn_implementation("eager")
    decoder = Decoder(model, allow_joined=False)
    assert decoder.config._attn_implementation == "eager"
    assert reference(variant).config._attn_implementation == ("eager" if variant in EAGER else "sdpa")
    assert_same(run(decoder, tokens, (20, 1, 9)), expected_scores(model, tokens))


CHOSEN = (range(3), range(2), range(1, 3), range(2, 3), (0, 2))
RAGGED = [
    pytest.param(*case, chosen, marks=[pytest.mark.full] if case in MODULES_OF_JOINED and number else [])
    for case in CASES
    for number, chosen in enumerate(CHOSEN)
]


@pytest.mark.parametrize(("variant", "allow_joined", "chosen"), RAGGED, ids=str)
@torch.inference_mode()
def test_ragged_rows_are_single_rows(variant, allow_joined, chosen):
    decoder, tokens, lengths, width = decoder_of(variant, allow_joined), tokens_of(3), (3, 25, 14), 4
    cache = decoder.new_cache(3, NUM_TOKENS)
    for row, length in enumerate(lengths):
        decoder.forward(tokens[row : row + 1, :length], Placement.chain([0], length, decoder.device, [row]), cache)
    starts = [lengths[row] for row in chosen]
    inputs = torch.stack([tokens[row, start : start + width] for row, start in zip(chosen, starts, strict=True)])
    found = decoder.forward(inputs, Placement.chain(starts, width, decoder.device, chosen), cache).scores
    for index, (row, start) in enumerate(zip(chosen, starts, strict=True)):
        expected = expected_scores(reference(variant), tokens[row : row + 1, : start + width])
        assert_same(found[index], expected[0, start:])


@by_variant
@torch.inference_mode()
def test_padding_behind_the_context_disturbs_nobody(variant):
    decoder, last = decoder_of(variant), CONTEXT_LENGTH - 1
    tokens = tokens_of(2, CONTEXT_LENGTH)
    cache = decoder.new_cache(2, CONTEXT_LENGTH + 8)
    decoder.forward(tokens[:, :last], Placement.chain([0, 0], last, decoder.device), cache)
    inputs = torch.stack([tokens[0, 5:8], torch.tensor([int(tokens[1, last]), 0, 0])])
    found = decoder.forward(inputs, Placement.chain([5, last], 3, decoder.device), cache).scores
    assert_same(found[0], expected_scores(reference(variant), tokens[:1, :8])[0, 5:])
    assert_same(found[1, :1], expected_scores(reference(variant), tokens[1:])[0, last:])


@pytest.mark.parametrize("variant", WINDOWED)
def test_the_window_matters(variant):
    """Else the tests above would not notice a missing one."""
    wide = pico(variant, sliding_window=CONTEXT_LENGTH)
    tokens = tokens_of()
    same, narrow = expected_scores(wide, tokens), expected_scores(reference(variant), tokens)
    assert_same(same[:, :WINDOW], narrow[:, :WINDOW])
    assert (same[:, WINDOW:] - narrow[:, WINDOW:]).abs().amax(-1).min() > 1e-2


# ------------------------------------------------------------------------------------------------------ skipping

SINGLE = [f"{kind}{layer}" for layer in range(NUM_LAYERS) for kind in "am"]
_random = random.Random(0)
SEVERAL = [",".join(sorted(_random.sample(SINGLE, count))) for count in (2, 3, 5, 8, 10)]


SKIPS = [(*case, skip) for case in CASES for skip in (*SINGLE, SEVERAL[2])]


def in_full(variant: str, allow_joined: bool, skip: str) -> bool:
    """Single sub-layers, except two, of families that have nothing of their own, and of modules that are joined."""
    is_tested_elsewhere = variant in SIMILAR or (variant, allow_joined) in MODULES_OF_JOINED
    return is_tested_elsewhere and skip in SINGLE and skip not in ("a2", "m3")


@pytest.mark.parametrize(
    ("variant", "allow_joined", "skip"),
    [pytest.param(*case, marks=[pytest.mark.full] if in_full(*case) else []) for case in SKIPS],
)
def test_a_skipped_sublayer_is_its_branch_zeroed(variant, allow_joined, skip):
    decoder, tokens, skip_set = decoder_of(variant, allow_joined), tokens_of(), SkipSet.parse(skip)
    expected = expected_scores(reference(variant), tokens, skip_set)
    assert_same(run(decoder, tokens, (19, 1, 1, 9), skip=skip_set), expected)
    assert (expected - expected_scores(reference(variant), tokens)).abs().max() > 1e-2


@by_case
@torch.inference_mode()
def test_a_draft_reads_the_targets_cache_and_verification_overwrites_it(variant, allow_joined):
    decoder, model, tokens = decoder_of(variant, allow_joined), reference(variant), tokens_of()
    skip, split, end = SkipSet.parse("a0,a2-3,m1,m3"), 20, 25
    cache, theirs = decoder.new_cache(1, NUM_TOKENS), DynamicCache()
    decoder.forward(tokens[:, :split], Placement.chain([0], split, decoder.device), cache)
    model(tokens[:, :split], past_key_values=theirs)
    with zeroed(model, skip):
        for start in range(split, end):
            token = tokens[:, start : start + 1]
            draft = decoder.forward(token, Placement.chain([start], 1, decoder.device), cache, skip=skip).scores
            assert_same(draft, model(token, past_key_values=theirs).logits)
    verified = decoder.forward(tokens[:, split:], Placement.chain([split], NUM_TOKENS - split, decoder.device), cache)
    assert_same(verified.scores, expected_scores(model, tokens)[:, split:])


def test_a_skip_set_outside_the_model_is_refused():
    with pytest.raises(OptionError, match=r"MLP layer 5, but the model has 5 layers: use 0 to 4"):
        run(decoder_of("llama"), tokens_of(), skip=SkipSet.parse("m5"))


# ------------------------------------------------------------------------------------------------------- capture


@by_case
@torch.inference_mode()
def test_captured_states_are_the_models(variant, allow_joined):
    decoder, tokens = decoder_of(variant, allow_joined), tokens_of(2)
    model = copy.deepcopy(reference(variant))  # transformers leaves its capturing hooks in place
    expected = model(tokens, use_cache=False, output_hidden_states=True).hidden_states
    points = ["embedding", *(f"m{layer}" for layer in range(NUM_LAYERS - 1)), "norm"]
    found = captured(decoder, tokens, points)
    for point, states in zip(points, expected, strict=True):
        assert_same(found[point], states)


@by_variant
@torch.inference_mode()
def test_captured_states_between_attention_and_mlp(variant):
    decoder, model, tokens = decoder_of(variant), reference(variant), tokens_of()
    seen: list[torch.Tensor] = []
    hook = blocks_of(model)[2].register_forward_hook(lambda module, inputs, output: seen.append(output))
    expected_scores(model, tokens, SkipSet.parse("m2"))  # a block whose MLP adds nothing ends after its attention
    hook.remove()
    assert_same(captured(decoder, tokens, ["a2"])["a2"], seen[0])


@torch.inference_mode()
def test_capture_with_skipping_and_without_scores():
    decoder, tokens, skip = decoder_of("llama"), tokens_of(), SkipSet.parse("a2")
    found = captured(decoder, tokens, ["m1", "a2", "norm"], skip=skip, needs_scores=False)
    assert torch.equal(found["a2"], found["m1"])
    assert_same(decoder.head(found["norm"]), expected_scores(reference("llama"), tokens, skip))


def test_an_unknown_capture_point_is_refused():
    with pytest.raises(OptionError, match=r"unknown capture point 'm9'.*Known: a0, .*embedding.*m4, norm"):
        run(decoder_of("llama"), tokens_of(), capture=["m9"])


# ----------------------------------------------------------------------------------------------- what is refused


class ScaledLlama(LlamaForCausalLM):
    def forward(self, *args: Any, **keywords: Any) -> Any:
        output = super().forward(*args, **keywords)
        output.logits = output.logits * 1.01
        return output


def _as_subclass(model: Any) -> None:
    model.__class__ = ScaledLlama


def _hook_a_layer(model: Any) -> None:
    model.model.layers[2].register_forward_hook(lambda module, inputs, output: output * 1.01)


def _hook_the_body(model: Any) -> None:
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: output.round())
    model.model.register_forward_pre_hook(
        lambda module, inputs, keywords: (inputs, {**keywords, "input_ids": keywords["input_ids"] // 2}),
        with_kwargs=True,
    )


@by_path
@pytest.mark.parametrize("alter", [_as_subclass, _hook_a_layer, _hook_the_body])
def test_an_altered_model_fails_the_self_test(alter, allow_joined):
    model = copy.deepcopy(pico("llama"))
    alter(model)
    with pytest.raises(SelfTestError, match="does not reproduce") as caught:
        Decoder(model, allow_joined=allow_joined)
    for part in ("'llama'", type(model).__name__, "selfdraft/models/families.py", "load the unmodified model"):
        assert part in str(caught.value)


def test_a_model_of_no_family_is_refused():
    config = OPTConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, ffn_dim=8, word_embed_proj_dim=8
    )
    with pytest.raises(UnsupportedModelError, match="unknown model family 'opt'") as caught:
        Decoder(OPTForCausalLM(config))
    assert all(family in str(caught.value) for family in FAMILIES)
    assert "one Family row for 'opt' in selfdraft/models/families.py" in str(caught.value)
    assert all(part in str(caught.value) for part in ("self-test", "tests/pico.py", "docs/models.md#adding-a-family"))


def _with_attention(implementation: str) -> Any:
    model = copy.deepcopy(pico("llama"))
    model.config._attn_implementation_internal = implementation
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(2, 2), r"Linear is not a Hugging Face.*AutoModelForCausalLM"),
        (lambda: pico("llama").model, r"LlamaModel has no 'model.layers'.*whole causal"),
        (lambda: _with_attention("flash_attention_2"), r"'flash_attention_2'.*attn_implementation='sdpa'"),
        (lambda: _with_attention("flex_attention"), r"'flex_attention'.*attn_implementation='sdpa'"),
    ],
    ids=["no model", "no head", "flash_attention_2", "flex_attention"],
)
def test_what_cannot_be_decoded_is_refused(make, message):
    with pytest.raises(UnsupportedModelError, match=message):
        Decoder(make())


# ------------------------------------------------------------------------------------------- modules of other kinds


class OddLinear(nn.Linear):
    """As a quantised or adapted layer: the weight alone does not tell what it computes."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) * 1.1


def _subclass(module: nn.Module) -> None:
    module.__class__ = OddLinear


def _hook(module: nn.Module) -> None:
    module.register_forward_hook(
        lambda module, inputs, output: (output[0] * 1.1, *output[1:]) if isinstance(output, tuple) else output * 1.1
    )


def _pre_hook(module: nn.Module) -> None:
    def shift_first(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if inputs:
            return (inputs[0] + 0.5, *inputs[1:]), keywords
        return inputs, {**keywords, "hidden_states": keywords["hidden_states"] + 0.5}

    module.register_forward_pre_hook(shift_first, with_kwargs=True)


def _replace_forward(module: nn.Module) -> None:
    forward = module.forward

    def replaced(*args: Any, **keywords: Any) -> Any:
        output = forward(*args, **keywords)
        return (output[0] * 1.1, *output[1:]) if isinstance(output, tuple) else output * 1.1

    module.forward = replaced


LINEARS = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
MODULES = (*LINEARS, "self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
FINAL_NORM = "final norm"
ALTERED = [(_subclass, path) for path in LINEARS] + [(_hook, FINAL_NORM)]
ALTERED += [(alter, path) for alter in (_hook, _pre_hook, _replace_forward) for path in MODULES]


@pytest.mark.parametrize(("alter", "path"), ALTERED, ids=lambda value: getattr(value, "__name__", value))
def test_a_module_of_another_kind_keeps_its_own_forward(alter: Callable[[nn.Module], None], path):
    model, tokens, layer = copy.deepcopy(pico("llama")), tokens_of(), 2
    alter(model.model.norm if path == FINAL_NORM else attrgetter(path)(model.model.layers[layer]))
    decoder = Decoder(model)
    is_attention = path.startswith(("self_attn", "input"))
    for sublayer in decoder.sublayers:
        altered = sublayer.name == ("a2" if is_attention else "m2") and path != FINAL_NORM
        assert isinstance(sublayer.run, JoinedBranch) is not altered
    assert isinstance(decoder.final_norm, JoinedNorm) is (path != FINAL_NORM)
    found = run(decoder, tokens, (20, 1, 9))
    assert_same(found, expected_scores(model, tokens))
    assert (found - expected_scores(reference("llama"), tokens)).abs().max() > 1e-2


@pytest.mark.parametrize("attach", ["register_forward_hook", "register_forward_pre_hook", "forward"])
def test_what_moves_to_another_module_is_noticed(attach):
    """The same function, taken from one layer and given to the next, as when a steering vector is tried on each."""
    model, tokens = copy.deepcopy(pico("llama")), tokens_of()
    runner = EagerRunner(model)

    def act(*call):
        return call[-1] * 1.5 if attach == "register_forward_hook" else (call[-1][0] * 1.5,)

    def shift(hidden):
        return hidden * 1.5

    for layer in model.model.layers:
        if attach == "forward":
            layer.mlp.forward = shift
        else:
            handle = getattr(layer.mlp, attach)(act)
        runner.refresh()
        found = runner.forward(PassRequest(tokens, [0]), runner.new_cache(1, NUM_TOKENS)).scores
        assert_same(found, expected_scores(model, tokens))
        if attach == "forward":
            del layer.mlp.forward
        else:
            handle.remove()


# ------------------------------------------------------------------------------------------------------- weights


@by_variant
def test_a_cast_model_is_attached_anew(variant):
    model, tokens = copy.deepcopy(pico(variant)), tokens_of()
    runner = EagerRunner(model)
    assert runner.decoder.is_current
    sublayers = runner.decoder.sublayers
    runner.refresh()
    assert runner.decoder.sublayers is sublayers
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # torch's grouped product has no float64
    model.double()
    assert not runner.decoder.is_current
    runner.refresh()
    assert runner.decoder.is_current
    assert runner.dtype == torch.float64
    found = runner.forward(PassRequest(tokens, [0]), runner.new_cache(1, NUM_TOKENS)).scores
    assert_same(found, expected_scores(model, tokens))  # the models' own norms compute in float32


@pytest.mark.parametrize("variant", ["qwen2", "gemma3_text", "phi3", "starcoder2"])
def test_new_weights_in_place_are_seen_at_once(variant):
    model = copy.deepcopy(pico(variant))
    decoder = Decoder(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    assert decoder.is_current
    assert_same(run(decoder, tokens_of()), expected_scores(model, tokens_of()))


JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@pytest.mark.parametrize("variant", ["llama", "qwen2", "olmo2"])
def test_joined_weights_are_the_models_own(variant, tmp_path):
    model = copy.deepcopy(reference(variant))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    Decoder(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    for layer in model.model.layers:
        for parent, names in zip((layer.self_attn, layer.mlp), JOINED, strict=True):
            assert len({getattr(parent, name).weight.untyped_storage().data_ptr() for name in names}) == 1
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    assert sum(storages.values()) == num_bytes

    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).state_dict()
    assert list(loaded) == list(before)
    assert all(torch.equal(loaded[name], before[name]) for name in before)


@pytest.mark.parametrize("variant", ["llama", "qwen2", "phi3"])
def test_two_decoders_on_one_model(variant):
    model, tokens = copy.deepcopy(pico(variant)), tokens_of()
    first, second = Decoder(model), Decoder(model)
    third = Decoder(copy.deepcopy(model))
    assert first.sublayers[0].run.qkv.data_ptr() == second.sublayers[0].run.qkv.data_ptr()
    assert first.sublayers[0].run.qkv.data_ptr() != third.sublayers[0].run.qkv.data_ptr()
    expected = expected_scores(reference(variant), tokens)
    for decoder in (first, second, third):
        assert decoder.is_current
        assert_same(run(decoder, tokens), expected)


def test_a_model_in_training_mode_is_refused():
    """Dropout would make every pass a different one."""
    model = copy.deepcopy(pico("gpt2")).train()
    with pytest.raises(UnsupportedModelError, match=r"in training mode.*call model\.eval\(\) first"):
        Decoder(model)
    runner = EagerRunner(model.eval())
    model.train()
    with pytest.raises(UnsupportedModelError, match="training mode"):
        runner.refresh()


def _replace_activation(mlp: nn.Module) -> None:
    """It has no weight whose address would tell."""
    mlp.act_fn = nn.GELU()


def _replace_child(mlp: nn.Module) -> None:
    mlp.down_proj = nn.Sequential(copy.deepcopy(mlp.down_proj), nn.Tanh())


@pytest.mark.parametrize("alter", [_hook, _replace_forward, _replace_activation, _replace_child])
def test_a_module_altered_after_attaching_is_noticed(alter: Callable[[nn.Module], None]):
    model, tokens = copy.deepcopy(pico("llama")), tokens_of()
    runner = EagerRunner(model)
    alter(model.model.layers[1].mlp)
    assert not runner.decoder.is_current
    runner.refresh()
    assert_same(run(runner.decoder, tokens), expected_scores(model, tokens))


def test_attaching_inside_inference_mode_leaves_the_model_trainable():
    model = copy.deepcopy(pico("llama"))
    with torch.inference_mode():
        Decoder(model)
    model(torch.arange(9)[None]).logits.sum().backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None


@pytest.mark.parametrize("mask_rows", [1, 3])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(12, 2), (4, 4), (6, 1)])
def test_a_group_as_one_head_is_the_same_attention(num_heads, num_kv_heads, mask_rows):
    """How masked groups run on CUDA, where the usual call has no quick way; here on the processor."""
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(3, 5, num_heads, 8, generator=draw).transpose(1, 2)
    keys, values = torch.randn(2, 3, num_kv_heads, 11, 8, generator=draw)
    hidden = torch.rand(mask_rows, 1, 5, 11, generator=draw) < 0.4
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, torch.finfo(torch.float32).min)
    found = attend_by_groups(query, keys, values, mask, scaling=0.3)
    torch.testing.assert_close(found, attend(query, keys, values, mask, scaling=0.3))
    assert not torch.equal(found, attend_by_groups(query, keys, values, torch.zeros_like(mask), scaling=0.3))


class Packed(torch.Tensor):
    """As quantised weights are: for a lookup, not for other operations."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.__getitem__, torch.Tensor.new_ones, torch.Tensor.new_zeros):
            raise NotImplementedError(function)
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        return result.as_subclass(cls) if function is torch.Tensor.detach else result


@pytest.mark.parametrize("family", ["llama", "smollm3"])
def test_nothing_is_asked_of_an_embedding_but_its_forward(family):
    model = copy.deepcopy(pico(family))
    embedding = model.get_input_embeddings()
    embedding.weight = torch.nn.Parameter(embedding.weight.detach().as_subclass(Packed), requires_grad=False)
    assert Decoder(model).self_test_error < 1e-5


def test_another_attention_is_attached_anew():
    """Soft caps depend on it, and not every one can be attached to."""
    model = copy.deepcopy(pico("llama"))
    decoder = Decoder(model)
    assert decoder.is_current
    model.set_attn_implementation("eager")
    assert not decoder.is_current
    decoder.attach()
    assert decoder.is_current
