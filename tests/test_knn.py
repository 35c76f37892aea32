"""`knn`: vectors and clusters, a set for each domain on a model of two worlds, routes, strangers, domains added later.

The model of two worlds keeps its tokens apart: those below `HALF` live in the first half of the hidden dimensions, the
others in the second, and no sub-layer carries anything across. MLP 1 works in the first world alone and MLP 2 in the
second: what one domain cannot do without is nothing to the other.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import learned
from pico import VOCAB_SIZE, letter_tokenizer, pico, save
from selfdraft import Engine, OptionError
from selfdraft.calibrate.calibrate import CalibrateOptions, calibrate
from selfdraft.calibrate.fit_session import EngineKit, FitSession
from selfdraft.cli.main import main
from selfdraft.engine.prefill import PREFILL_CHUNK
from selfdraft.passes import PassRequest
from selfdraft.profiles.profile import Artefact
from selfdraft.profiles.searches import SURE
from selfdraft.profiles.store import Store
from selfdraft.registry import options_for, resolve
from selfdraft.strategies.anchors import (
    POINT,
    REPRESENTATIVES,
    condense,
    representatives,
    threshold_of,
    unpack,
    vector_of,
)
from selfdraft.strategies.domains import MAX_SAMPLES
from selfdraft.strategies.kmeans import choose_count, kmeans, normalised
from selfdraft.strategies.knn import Knn
from selfdraft.strategies.prune import Prune, num_fitting
from selfdraft.types import Prompt, SkipSet

pytestmark = pytest.mark.usefixtures("home", "untimed")

HALF, HIDDEN = VOCAB_SIZE // 2, 16
ALWAYS = {"knn": {"always": True}}


# ------------------------------------------------------------------------------------------------ K-means


def blobs(centres: Sequence[Sequence[float]], each: int = 20, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Directions around each centre, of any length."""
    generator = np.random.default_rng(3)
    truth = np.arange(len(centres) * each) % len(centres)
    vectors = np.array(centres)[truth] + noise * generator.normal(size=(len(truth), len(centres[0])))
    return vectors * generator.uniform(0.1, 10, size=(len(truth), 1)), truth


CENTRES = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0.7, 0, 0.7), (-1, 0, 0, 0))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_planted_clusters_are_found_and_counted(count: int) -> None:
    vectors, truth = blobs(CENTRES[:count])
    assert choose_count(vectors) == count
    found = kmeans(vectors, count, seed=1)
    assert len({*zip(truth.tolist(), found.labels.tolist(), strict=True)}) == count
    assert np.allclose(np.linalg.norm(found.centroids, axis=1), 1)
    nearest = normalised(np.array(CENTRES[:count], float)) @ found.centroids.T
    assert (nearest.max(1) > 0.99).all()
    again = kmeans(vectors, count, seed=1)
    assert np.array_equal(again.labels, found.labels)
    assert again.loss == found.loss


def test_few_or_equal_vectors() -> None:
    twins = np.ones((6, 3))
    assert kmeans(twins, 4).labels.tolist() == [0] * 6
    assert [choose_count(vectors) for vectors in (twins, np.eye(2), np.eye(1))] == [1, 1, 1]
    assert sorted(kmeans(np.eye(3), 5).labels.tolist()) == [0, 1, 2]
    assert choose_count(blobs(CENTRES[:2], each=2)[0], most=9) <= 3
    assert kmeans(np.zeros((4, 3)), 2).labels.tolist() == [0] * 4


def test_no_cluster_is_empty() -> None:
    generator = np.random.default_rng(0)
    for seed in range(20):
        labels = kmeans(generator.normal(size=(12, 2)), 9, seed, num_restarts=1).labels
        assert len(np.unique(labels)) == 9


def test_anchors_are_nearest_to_the_centres_of_kmeans() -> None:
    """By hand: of each centre the vector of largest cosine. `central`: those nearest to the centroid (equation 2)."""
    vectors, _ = blobs(CENTRES, each=12, noise=0.3)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = kmeans(vectors, 10, seed=7).centroids
    assert sorted(representatives(vectors, 10, "kmeans", 7)) == sorted((unit @ centres.T).argmax(0).tolist())
    assert representatives(vectors, 10, "central") == np.argsort(-(unit @ unit.mean(0)))[:10].tolist()
    assert sorted(representatives(vectors[:4], 9, "kmeans")) == [0, 1, 2, 3]
    assert len({*representatives(np.ones((5, 3)), 3, "kmeans")}) == 3, "equal vectors: any of them"


def test_thresholds() -> None:
    """Anchors do not count as their own neighbours."""
    angles = np.radians([0, 10, 20, 60])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    nearest = np.cos(np.radians([10, 10, 10, 50]))
    assert threshold_of(vectors, [0, 1]) == pytest.approx(nearest.min() - 2 * nearest.std())
    assert threshold_of(vectors[:1], [0]) is None
    assert threshold_of(vectors[:2], [0]) is None
    assert threshold_of(-vectors[[0, 3]] * [[1, 1], [-1, -1]], [0, 1]) == pytest.approx(-0.5)


# ------------------------------------------------------------------------------------------------ two worlds


@functools.cache
def worlds() -> Any:
    model = copy.deepcopy(pico("llama"))
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(2.0)  # the tokens of a world have a direction in common
        apart(model.model.embed_tokens.weight, HALF, HIDDEN)
        apart(model.lm_head.weight, HALF, HIDDEN)
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            apart(attention.v_proj.weight, attention.v_proj.out_features // 2, HIDDEN)
            apart(attention.o_proj.weight, HIDDEN, attention.o_proj.in_features // 2)
            for weight in (mlp.gate_proj.weight, mlp.up_proj.weight):
                apart(weight, mlp.gate_proj.out_features // 2, HIDDEN)
            apart(mlp.down_proj.weight, HIDDEN, mlp.down_proj.in_features // 2)
        for number, rows in ((1, slice(HIDDEN, None)), (2, slice(0, HIDDEN))):
            weight = model.model.layers[number].mlp.down_proj.weight
            weight.mul_(6)
            weight[rows] = 0
    return model


def apart(weight: torch.Tensor, rows: int, columns: int) -> None:
    """Nothing goes from one world to the other."""
    weight[:rows, columns:] = 0
    weight[rows:, :columns] = 0


def tokens_of(world: str, number: int, length: int = 6) -> tuple[int, ...]:
    generator = np.random.default_rng([number, length])
    first = {"low": 0, "high": HALF, "mixed": 0}[world]
    drawn = generator.integers(first, first + HALF, length)
    if world == "mixed":
        drawn[::2] += HALF
    return tuple(map(int, drawn))


def prompts_of(*names: str, each: int = 4, domain: str | None = None) -> list[Prompt]:
    made = [(name, number) for number in range(each) for name in names]
    return [Prompt(f"{name}-{n}", domain or name, tokens=tokens_of(name, n)) for name, n in made]


def new_engine(**options: Any) -> Engine:
    return Engine(worlds(), letter_tokenizer(), name="worlds", profile=None, strategy="off", **options)


def quick(**settings: Any) -> CalibrateOptions:
    return CalibrateOptions(600, 24, 0, settings={"knn": settings} if settings else {})


def content(profile: Any) -> dict[str, Any]:
    return dict(profile.artefacts["knn"].content)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    """Both worlds, by their labels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFDRAFT_HOME", str(tmp_path_factory.mktemp("fitted")))
        learned.know_latency(patch)
        return calibrate(new_engine(), prompts_of("low", "high", each=8), ["knn"], quick()).artefacts["knn"]


def engine_with(artefact: Artefact | Mapping[str, Any], **options: Any) -> Engine:
    known = artefact if isinstance(artefact, Artefact) else Artefact.of(artefact)
    profile = learned.profile()
    profile = dataclasses.replace(profile, artefacts={**profile.artefacts, "knn": known})
    return Engine(worlds(), letter_tokenizer(), name="worlds", profile=profile, strategy="knn", **options)


def skips(generation: Any) -> set[SkipSet]:
    return {step.plan.skip for step in generation.steps if step.draft.num_draft_steps}


def test_each_domain_gets_its_own_set(fitted: Artefact) -> None:
    domains = {domain["name"]: domain for domain in fitted.values["domains"]}
    assert list(domains) == ["low", "high"]
    first = {name: domain["found"]["frontier"][1] for name, domain in domains.items()}
    assert (first["low"]["skip"], first["low"]["match"]) == ("m2", 0.9), "it does nothing in that world"
    assert (first["high"]["skip"], first["high"]["match"]) == ("m1", 0.9)
    general = {point["skip"]: point["match"] for point in fitted.values["general"]["frontier"]}
    assert [*general] not in [[point["skip"] for point in domain["found"]["frontier"]] for domain in domains.values()]
    assert {name: domain["found"]["surety"] for name, domain in domains.items()} == {"low": 1.0, "high": 1.0}
    assert {name: domain["num_vectors"] for name, domain in domains.items()} == {"low": 6, "high": 6}, (
        "a quarter is out"
    )
    assert (fitted.values["feature"], fitted.values["search"], fitted.values["is_complete"]) == ("mean", "prune", True)
    assert fitted.arrays["anchors"].shape == fitted.arrays["samples"].shape == (12, 32)
    assert fitted.arrays["anchor_domains"].tolist() == fitted.arrays["sample_domains"].tolist() == [0] * 6 + [1] * 6
    assert [array.dtype for array in fitted.arrays.values()].count(torch.float32) == 1


def test_prompts_are_told_apart_and_strangers_are_known(fitted: Artefact) -> None:
    engine = engine_with(fitted, settings=ALWAYS, shared_skip=False)
    asked = {"low": tokens_of("low", 50), "high": tokens_of("high", 51), "mixed": tokens_of("mixed", 52, 8)}
    found = dict(zip(asked, engine.generate([*map(list, asked.values())], max_new_tokens=24), strict=True))
    for world in ("low", "high"):
        report = found[world].report
        assert report == {"domain": world, "similarity": report["similarity"], "nearest": world}
        assert 0.3 < report["similarity"] <= 1.0001
        assert set(found[world].tokens) <= set(range(HALF) if world == "low" else range(HALF, VOCAB_SIZE))
    assert all(2 in skip.mlp for skip in skips(found["low"]))
    assert all(1 in skip.mlp for skip in skips(found["high"]))
    assert skips(found["low"])
    assert skips(found["high"])
    stranger = found["mixed"].report
    assert stranger["domain"] == "general"
    assert stranger["nearest"] in ("low", "high")
    general = {SkipSet.parse(point["skip"]) for point in fitted.values["general"]["frontier"]}
    assert skips(found["mixed"]) <= general
    for world, generation in found.items():
        row = list(asked).index(world)
        assert (
            generation.tokens == engine.generate(asked[world], strategy="off", sequence=row, max_new_tokens=24).tokens
        )


# ------------------------------------------------------------------------------------------------ vectors


@pytest.mark.parametrize("feature", ["mean", "last"])
def test_the_fit_and_a_generation_see_the_same_vector(fitted: Artefact, feature: str) -> None:
    """Also of a prompt of several parts; and it is what the whole prefill says."""
    model = pico("llama", max_position_embeddings=2048)
    engine = Engine(model, profile=learned.profile(knn={}), strategy="off")
    prompt = Prompt("long", "a", tokens=tuple(int(7 * n * n + 3) % 100 for n in range(PREFILL_CHUNK + 40)))
    journal = Store().journal(engine.knowledge.key, "knn", {})
    session = FitSession(engine, 8, lambda *_, **__: journal)
    kit = EngineKit(session, [prompt], lambda has_time: session.write([prompt]), journal, 9, "")
    fit = vector_of(kit.hidden(prompt, (POINT,), condense(feature)))

    values = {**fitted.content, "feature": feature}
    known = dataclasses.replace(learned.profile(), artefacts={"knn": Artefact.of(values)})
    engine = Engine(model, profile=known, strategy="knn", settings={"knn": {"feature": feature}})
    with mock.patch.object(Knn, "begin", autospec=True, side_effect=Knn.begin) as begin:
        engine.generate(prompt.tokens, max_new_tokens=1)
    begun = vector_of(begin.call_args.args[2])
    assert fit is not None
    assert begun is not None
    assert fit.dtype == np.float32
    assert np.array_equal(fit, begun)

    runner, inputs = engine.runner, torch.tensor([prompt.tokens[:-1]])
    states = runner.forward(
        PassRequest(inputs, [0], capture=(POINT,)), runner.new_cache(1, len(prompt.tokens))
    ).captured[POINT][0]
    expected = states.mean(0) if feature == "mean" else states[-1]
    assert np.allclose(begun, torch.nn.functional.normalize(expected, dim=0).numpy(), atol=1e-5)


def test_what_is_computed_in_half_precision_is_summed_in_float32() -> None:
    states = torch.full((1, 4096, 2), 0.1, dtype=torch.bfloat16)
    found = condense("mean")({POINT: states})
    assert all(part.dtype == torch.float32 for part in found.values())
    assert torch.allclose(found["vector sum"], 4096 * states[:, :1].float())


# ------------------------------------------------------------------------------------------------ domains


@pytest.fixture
def judged() -> list[list[str]]:
    """Sets of other searches that each fit was given."""
    return []


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, judged: list[list[str]]) -> list[tuple[str, ...]]:
    """`prune` fitted at once: its set depends on the prompts it is fitted on, which are noted down."""
    asked: list[tuple[str, ...]] = []

    def fit(kit: Any, options: Any) -> dict[str, Any]:
        asked.append(tuple(prompt.id for prompt in kit.prompts))
        judged.append([str(skip) for skip in kit.others])
        kit.has_time()
        worlds = {name.split("-")[0] for name in asked[-1]}
        skip = {("low",): "m2", ("high",): "m1", ("mixed",): "a3"}.get(tuple(worlds), "a2")
        return {"frontier": [{"skip": skip, "lost": 0.0, "match": 0.9}]}

    monkeypatch.setattr("selfdraft.strategies.prune.Prune.fit", staticmethod(fit))
    return asked


def sets_of(profile: Any) -> dict[str, str]:
    return {one["name"]: one["found"]["frontier"][0]["skip"] for one in content(profile)["domains"]}


def test_a_domain_added_later_leaves_the_others_alone(told: list[tuple[str, ...]], judged: list[list[str]]) -> None:
    engine = new_engine()
    before = content(calibrate(engine, prompts_of("low", "high"), ["knn"], quick()))
    assert len(told) == 3
    assert judged == [[], ["a2"], ["a2"]], "what the general search found, on prompts of both"
    after = content(calibrate(engine, prompts_of("mixed"), ["knn"], quick()))
    assert told[3:] == [told[3]]
    assert judged[3:] == [["a2"]]
    assert {name.split("-")[0] for name in told[3]} == {"mixed"}
    assert [one["name"] for one in after["domains"]] == ["low", "high", "mixed"]
    assert after["domains"][:2] == before["domains"]
    assert after["general"] == before["general"]
    for name in ("anchors", "anchor_domains", "samples", "sample_domains"):
        assert torch.equal(after[name][:6], before[name]), name
    assert after["anchor_domains"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]

    for option, value in (("feature", "last"), ("search", "told")):
        known = {**after, option: "told" if option == "search" else "last"}
        Store().update(engine.knowledge.key, "knn", Artefact.of(known))
        with pytest.raises(OptionError, match=f"high, mixed were found with knn.{option}={value}, not .* Say --set"):
            calibrate(engine, prompts_of("low"), ["knn"], quick())
    known = len(judged)
    Store().update(engine.knowledge.key, "knn", Artefact.of(after))
    calibrate(engine, prompts_of("low", each=5), ["knn"], quick())
    assert judged[known:] == [[]], "its prompts may have chosen the general sets"
    everything = calibrate(engine, prompts_of("low", "high", "mixed"), ["knn"], quick())
    assert sets_of(everything) == {"low": "m2", "high": "m1", "mixed": "a3"}, "nothing is kept: nothing must be alike"


def test_prompts_without_labels_are_clustered(told: list[tuple[str, ...]]) -> None:
    engine = new_engine()
    mixed = prompts_of("low", "high", each=8, domain="all")
    found = calibrate(engine, mixed, ["knn"], quick())
    assert set(sets_of(found).values()) == {"m2", "m1"}, "no cluster holds both worlds"
    assert sets_of(calibrate(engine, mixed, ["knn"], quick(clusters=3))).keys() == {f"cluster-{n}" for n in (1, 2, 3)}
    two = calibrate(engine, mixed, ["knn"], quick(clusters=2))
    assert sets_of(two) == {"cluster-1": "m2", "cluster-2": "m1"}, "clusters are made again together"
    labelled = calibrate(engine, prompts_of("mixed"), ["knn"], quick(clusters=2))
    assert len(sets_of(labelled)) == 2
    known = calibrate(engine, prompts_of("low"), ["knn"], quick())
    assert sets_of(known) == {"low": "m2"}, "a label is kept, and takes the place of clusters"


def test_beginning_again_keeps_no_domain(told: list[tuple[str, ...]]) -> None:
    engine = new_engine()
    calibrate(engine, prompts_of("low", "high"), ["knn"], quick())
    started = calibrate(engine, prompts_of("mixed", "low"), ["knn"], replace(quick(feature="last"), again=True))
    assert sets_of(started) == {"mixed": "a3", "low": "m2"}


def test_a_fit_is_as_complete_as_all_that_it_keeps(told: list[tuple[str, ...]]) -> None:
    engine = new_engine()
    cut = content(calibrate(engine, prompts_of("low", "high"), ["knn"], quick()))
    Store().update(engine.knowledge.key, "knn", Artefact.of({**cut, "is_complete": False}))
    assert not content(calibrate(engine, prompts_of("mixed"), ["knn"], quick()))["is_complete"]


@pytest.mark.parametrize("each", [4, 8, 30])
def test_general_sets_are_judged_on_prompts_that_did_not_choose_them(told: list[tuple[str, ...]], each: int) -> None:
    calibrate(new_engine(), prompts_of("low", "high", "mixed", each=each), ["knn"], quick())
    general, *domains = told
    for own in domains:
        assert not {*general} & {*own[num_fitting(len(own)) :]}
    assert {name.split("-")[0] for name in general} == {"low", "high", "mixed"}


def test_what_the_general_search_found_later_is_judged(
    told: list[tuple[str, ...]], judged: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget had ended it first: domains that were complete are asked again, about its sets."""
    honest, is_cut = Prune.fit, [True]

    def fit(kit: Any, options: Any) -> dict[str, Any]:
        found = honest(kit, options)
        if len({prompt.domain for prompt in kit.prompts}) == 1 or not is_cut:
            return found
        kit.is_out_of_time = is_cut.pop()
        return {"frontier": []}

    monkeypatch.setattr("selfdraft.strategies.prune.Prune.fit", staticmethod(fit))
    engine, prompts = new_engine(), prompts_of("low", "high")
    assert not content(calibrate(engine, prompts, ["knn"], quick()))["is_complete"]
    assert content(calibrate(engine, prompts, ["knn"], quick()))["is_complete"]
    assert judged == [[], [], [], [], ["a2"], ["a2"]]


def test_searches_with_other_options_have_journals_of_their_own() -> None:
    """What an interrupted search had timed otherwise is not gone on with."""
    session, prompts = (
        FitSession(new_engine(), 24, lambda name, **asked: Store().journal(key, name, asked)),
        prompts_of("low"),
    )
    key, questions = session.engine.knowledge.key, []
    for options in ("num_tokens=8", "num_tokens=32"):
        kit = EngineKit(
            session, prompts, lambda has_time: session.write(prompts), session.journal("knn", options=options), 9, ""
        )
        questions.append(kit.among(prompts, "prune of low", 1.0)._journal.question)
    assert questions[0] != questions[1]


@pytest.mark.parametrize("how", REPRESENTATIVES)
def test_limits_of_a_fit(told: list[tuple[str, ...]], how: str) -> None:
    options = quick(anchors=2, search_prompts=3, max_vectors=5, representatives=how)
    found = content(calibrate(new_engine(), prompts_of("low", "high", each=9), ["knn"], options))
    assert [one["num_vectors"] for one in found["domains"]] == [5, 5]
    assert found["anchor_domains"].tolist() == [0, 0, 1, 1]
    assert [len(asked) for asked in told] == [8, 3, 3], "all that did not judge what it finds"
    in_turn = [f"{world}-{number}" for number in range(5) for world in ("low", "high")]
    judging = {told[1][-1], told[2][-1]}
    assert [*told[0]] == [name for name in in_turn if name not in judging], "as `prune` has them"
    assert len(found["samples"]) == 10 <= 2 * MAX_SAMPLES
    low = unpack(found)[0]
    samples = low.samples.astype(np.float32)
    anchors = (low.anchors @ samples.T).argmax(1)
    searched = [int(name.split("-")[1]) for name in told[1]]
    if how == "central":
        assert [*anchors] == representatives(samples, 2, how)
        assert searched == sorted(representatives(samples, 3, how))
    for rows in (anchors, searched) if how == "kmeans" else ():
        clusters = kmeans(samples, len(rows))
        alike = samples @ clusters.centroids.T
        nearest = alike[[*map(int, rows)]].max(axis=0)
        assert nearest == pytest.approx(alike.max(axis=0), abs=1e-3), "of each cluster the one nearest to its centre"


def test_the_papers_form_is_its_authors_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bayesian sets, timed as they are used and with layer 0 among them; centres as anchors; options reach inside."""
    timed: list[Mapping[str, Any]] = []
    speed = {"m0": 300.0, "": 500.0}

    def tokens_per_second(kit: Any, method: Mapping[str, Any], prompts: Any, num_tokens: int) -> float:
        timed.append(method)
        return speed.get(method.get("settings", {}).get("fixed", {}).get("skip", ""), 200.0)

    monkeypatch.setattr(EngineKit, "tokens_per_second", tokens_per_second)
    settings = {"knn": {"paper": True, "anchors": 2}, "draft-verify": {"iterations": 20}}
    options = CalibrateOptions(600, 24, 0, settings=settings)
    found = content(calibrate(new_engine(), prompts_of("low", "high", each=8), ["knn"], options))
    drafting = [method for method in timed if method["strategy"] != "off"]
    assert {method["lookahead"] for method in drafting} == {"confidence"}
    assert len(drafting) == 3 * 20
    assert any("a0" in method["settings"]["fixed"]["skip"].split(",") for method in drafting)
    for one in unpack(found):
        samples = one.samples.astype(np.float32)
        assert np.allclose(one.anchors, kmeans(samples, 2).centroids, atol=1e-3)
        found_set = one.found["sets"]["mixed"]
        assert found_set["skip"] == "", "plain decoding was faster"
        engine = engine_with(found, settings=settings)
        generation = engine.generate([*tokens_of(one.name, 50)], max_new_tokens=8)
        assert skips(generation) == {SkipSet.parse(found_set["drafting"]["skip"])}, "it drafts all the same"
        assert generation.tokens == engine.generate([*tokens_of(one.name, 50)], strategy="off", max_new_tokens=8).tokens
        assert generation.report["domain"] == one.name
    assert {name: resolve({"strategy": "knn", "settings": settings})[name] for name in ("tree", "lookahead")} == {
        "tree": "chain",
        "lookahead": "confidence",
    }
    assert resolve({"strategy": "knn"})["tree"] == "siblings"


def test_an_interrupted_fit_goes_on(told: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = EngineKit.keep
    kept: list[Any] = []

    def keep(kit: EngineKit, found: Any) -> None:
        kept.append(found)
        if len(kept) == 2:
            raise KeyboardInterrupt
        honest(kit, found)

    monkeypatch.setattr(EngineKit, "keep", keep)
    engine, prompts = new_engine(), prompts_of("low", "high")
    with pytest.raises(KeyboardInterrupt):
        calibrate(engine, prompts, ["knn"], quick())
    said: list[str] = []
    found = calibrate(engine, prompts, ["knn"], quick(), say=said.append)
    assert any("fitting knn, going on after 1 steps" in line for line in said)
    assert told == [told[0], told[1], told[1], told[3]], "what was searched is not searched again"
    assert sets_of(found) == {"low": "m2", "high": "m1"}


def test_what_the_budget_ended_goes_on(told: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search that was cut, once in a run; those that were complete are not asked again.

    A step was refused, a shorter one would not be: it is cut all the same.
    """
    cut = {"low"}
    has_time = EngineKit.has_time

    def asked(kit: EngineKit, expected: float | None = None) -> bool:
        is_refused = not kit.is_out_of_time and any(kit._label == f"fitting prune of {name}" for name in cut)
        kit.is_out_of_time |= is_refused
        return not is_refused and has_time(kit, expected)

    monkeypatch.setattr(EngineKit, "has_time", asked)
    engine, prompts = new_engine(), prompts_of("low", "high")
    assert content(calibrate(engine, prompts, ["knn"], quick()))["is_complete"] is False
    assert content(calibrate(engine, prompts, ["knn"], quick()))["is_complete"] is False
    cut.clear()
    assert content(calibrate(engine, prompts, ["knn"], quick()))["is_complete"] is True
    assert told == [*told[:3], told[1], told[1]]


@pytest.mark.parametrize("surety", [0.6, 0.8])
def test_sets_of_all_draft_where_own_ones_are_not_surely_better(fitted: Artefact, surety: float) -> None:
    low, high = fitted.values["domains"]
    found = {**low, "found": {**low["found"], "surety": surety}}
    general = {"frontier": [{"skip": "m1", "lost": 0.1, "match": 0.9}]}
    engine = engine_with({**fitted.content, "domains": [found, high], "general": general}, settings=ALWAYS)
    generation = engine.generate([*tokens_of("low", 50)], max_new_tokens=24)
    assert generation.report["domain"] == "low"
    assert (skips(generation) == {SkipSet.parse("m1")}) is (surety < SURE)
    assert generation.tokens == engine.generate([*tokens_of("low", 50)], strategy="off", max_new_tokens=24).tokens


def test_a_domain_without_a_set_goes_by_the_general_search(fitted: Artefact) -> None:
    """Time was up before its own had found one; where that has found none either, it decodes plainly."""
    nothing = {"frontier": [{"skip": "", "lost": 0.0, "match": 1.0}]}
    low, high = fitted.values["domains"]
    engine = engine_with({**fitted.content, "domains": [{**low, "found": nothing}, high]}, settings=ALWAYS)
    found = engine.generate([[*tokens_of("low", 50)], [*tokens_of("high", 51)]], max_new_tokens=8)
    assert [generation.report["domain"] for generation in found] == ["low", "high"]
    assert skips(found[0]) <= {SkipSet.parse(point["skip"]) for point in fitted.values["general"]["frontier"]}
    assert [bool(generation.stats.num_draft_steps) for generation in found] == [True, True]
    engine = engine_with({**engine.knowledge.artefact("knn"), "general": nothing}, settings=ALWAYS)
    found = engine.generate([[*tokens_of("low", 50)], [*tokens_of("high", 51)]], max_new_tokens=8)
    assert [bool(generation.stats.num_draft_steps) for generation in found] == [False, True]


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "damage",
    [{"domains": 3}, *({"general": {"frontier": points}} for points in ([{"lost": 1}], 3, [{"skip": "x"}]))],
    ids=str,
)
def test_a_damaged_artefact_is_made_anew(damage: Mapping[str, Any], told: list[tuple[str, ...]]) -> None:
    engine, prompts = new_engine(), prompts_of("low", "high")
    found = content(calibrate(engine, prompts, ["knn"], quick()))
    Store().update(engine.knowledge.key, "knn", Artefact.of({**found, **damage}))
    assert sets_of(calibrate(engine, prompts_of("low", "mixed"), ["knn"], quick())) == {"low": "m2", "mixed": "a3"}


def test_what_was_fitted_otherwise_is_refused(fitted: Artefact) -> None:
    message = (
        "knn.feature=last, but .* with knn.feature=mean. Say --set knn.feature=mean, or fit them again with: .*=last"
    )
    with pytest.raises(OptionError, match=message):
        engine_with(fitted, settings={"knn": {"feature": "last"}})
    with pytest.raises(OptionError, match=r"knn.search=prune, but .* found with knn.search=draft-verify"):
        engine_with({**fitted.content, "search": "draft-verify"})
    otherwise = {**fitted.content, "search": "draft-verify"}
    message = "knn.paper=true, but .* found with knn.paper=false. Say --set knn.paper=false, or .* --set knn.paper=true"
    for made in (fitted, otherwise, {name: one for name, one in otherwise.items() if name != "paper"}):
        with pytest.raises(OptionError, match=message):
            engine_with(made, settings={"knn": {"paper": True}})
    with pytest.raises(OptionError, match=r"knn.paper=false, but .* found with knn.paper=true"):
        engine_with({**otherwise, "paper": True}, settings={"knn": {"search": "draft-verify"}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"search": "uniform"}, "knn.search='uniform' cannot search: it is fitted to no prompts; use "),
        ({"search": "knn"}, "knn.search='knn' cannot search"),
        ({"feature": "first"}, "unknown feature of knn 'first'"),
        ({"representatives": "random"}, "unknown representatives of knn 'random'"),
        ({"stranger": 1.5}, "knn.stranger must be between -1 and 1, got 1.5"),
        ({"stranger": True}, "knn.stranger must be a number, got True"),
        ({"stranger": "far"}, "knn.stranger must be a number, got 'far'"),
    ],
    ids=str,
)
def test_options(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        options_for("strategy", "knn", {"knn": values})
    assert message in str(caught.value)
    assert options_for("strategy", "knn", {"knn": {"stranger": "-0.5"}}).stranger == -0.5


def test_prompts_too_short_to_tell_apart(told: list[tuple[str, ...]]) -> None:
    short = [Prompt(str(n), "a", tokens=(n,)) for n in range(3)]
    with pytest.raises(OptionError, match="knn needs prompts of at least two tokens"):
        calibrate(new_engine(), short, ["knn"], quick())


# ------------------------------------------------------------------------------------------------ the commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(worlds(), tmp_path_factory.mktemp("model"))


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def as_text(world: str, number: int) -> str:
    return "".join(chr(33 + token) for token in tokens_of(world, number))


def lines_of(world: str, field: str | None = None) -> list[dict[str, str]]:
    label = {field: world} if field else {}
    return [{"prompt": as_text(world, number), **label} for number in range(4)]


def test_the_commands(
    folder: str, tmp_path: Path, told: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = write_lines(tmp_path / "mine.jsonl", [*lines_of("low", "task"), *lines_of("high", "task")])
    asked = ["calibrate", folder, "--strategy", "knn", "--tokens", "24", "--trial-prompts", "1"]
    feature = ["--set", "knn.feature=last"]
    assert main([*asked, *feature, "--domain-field", "task", "--prompts", labelled]) == 0
    output = capsys.readouterr().out
    assert "texts (low, high)" in output
    assert '--strategy knn --set knn.feature=last "' in output
    generate = ["generate", "--model", folder, "--strategy", "knn", *feature, "--max-new-tokens", "4"]
    assert main([*generate, "--json", as_text("low", 50)]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["nearest"] == "low"
    assert main([*generate, "--set", "knn.stranger=-1", as_text("high", 50)]) == 0
    assert "\nroute: high (similarity 0." in capsys.readouterr().err
    assert main([*generate, "--set", "knn.stranger=1", as_text("high", 50)]) == 0
    assert " to high, too little)" in capsys.readouterr().err
    assert main([*asked, "--domain-field", "tsk", "--prompts", labelled]) == 2
    assert "line 1 of mine.jsonl has no 'tsk' that is text; write it like {\"tsk\": " in capsys.readouterr().err
    assert main([*generate, "!"]) == 0
    assert "route: general (the prompt is too short to tell)" in capsys.readouterr().err


def test_domains_by_file_and_none(
    folder: str, tmp_path: Path, told: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [write_lines(tmp_path / f"{world}.jsonl", lines_of(world)) for world in ("low", "high")]
    asked = ["calibrate", folder, "--strategy", "knn", "--tokens", "24", "--trial-prompts", "0"]
    assert main([*asked, "--prompts", *files]) == 0
    assert "texts (low, high)" in capsys.readouterr().out
    whole = write_lines(tmp_path / "whole.jsonl", [*lines_of("low"), *lines_of("high")])
    assert main([*asked, "--prompts", whole]) == 0
    assert "texts (low, high, cluster-1, cluster-2)" in capsys.readouterr().out
    assert main(["calibrate", "--lookahead", "disco", folder, "--domain", "low", "--prompts", whole]) == 2
    assert "unknown domain 'low'. Known: all" in capsys.readouterr().err
