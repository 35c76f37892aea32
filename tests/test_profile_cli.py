"""`selfdraft profile`: profiles as users see them, and lemma 4.1 of KnapSpec on real states."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import learned
from pico import FAMILIES, NUM_LAYERS, pico
from selfdraft import Engine, SkipSet
from selfdraft.calibrate import lemma
from selfdraft.calibrate.lemma import Judged, Lemma
from selfdraft.calibrate.texts import Text
from selfdraft.cli import profile_charts
from selfdraft.cli.main import main
from selfdraft.economics import LatencyFit, Line
from selfdraft.errors import OptionError, UnsupportedModelError
from selfdraft.profiles.contents import read_sets
from selfdraft.profiles.key import ProfileKey
from selfdraft.profiles.profile import SCHEMA, Artefact, Profile
from selfdraft.profiles.store import Store
from selfdraft.protocols import Knowledge, PlanContext
from selfdraft.strategies.knapsack import Candidate
from selfdraft.strategies.prune import Prune

TRIAL = {"skip": "a1,m2", "strategy": "fixed", "match": 0.8, "predicted": 1.3, "measured": 1.27}
TRIALS = [
    {**trial, "acceptance_rate": 0.8, "mean_generated_length": 3.0, "num_tokens": 128, "num_prompts": 2}
    for trial in (
        {**TRIAL, "strategy": "prune", "measured": 1.11},
        TRIAL,
        {**TRIAL, "strategy": "knapspec", "skip": "a2", "match": 0.9, "measured": 1.05},
        {**TRIAL, "strategy": "clasp", "skip": "", "match": 1.0, "measured": 0.98},
    )
]
FACTS = {"num_texts": 3, "num_tokens": 90, "domains": ["code"], "seconds": 4.0, "is_complete": True, "trials": TRIALS}


@pytest.fixture
def store(home: Path) -> Store:
    return Store()


@pytest.fixture
def key(store: Store, folder: str) -> ProfileKey:
    """Of a pico model with a profile."""
    key = ProfileKey.of(pico("llama"), folder)
    known = learned.profile(prune={"frontier": learned.FRONTIER, **FACTS})
    assert known.latency is not None
    store.set_latency(key, known.latency)
    store.update(key, "prune", known.artefacts["prune"])
    return key


class TestList:
    def test_nothing(self, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "list"]) == 0
        assert f"no profiles in {store.folder} yet. Make one with: selfdraft calibrate" in capsys.readouterr().out

    def test_all_that_there_is(self, store: Store, key: ProfileKey, capsys: pytest.CaptureFixture[str]) -> None:
        """Also a profile of another version, and one that cannot be read."""
        old = ProfileKey("llama-0", "some GPU", "bfloat16", version="0.0.1", name="old-model")
        store.update(old, "own", Artefact({"learned": 3}))
        damaged = store.folder / "llama-1-cpu-float32-0.1.0" / "profile.json"
        damaged.parent.mkdir()
        damaged.write_text("{")
        assert main(["profile", "list"]) == 0
        output = capsys.readouterr().out
        assert f"{key.name} on {key.device}, float32\n  knows    latency, prune (4 skip sets, 4 trials)\n" in output
        assert str(store.path_of(key)) in output
        assert "old-model on some GPU, bfloat16\n  knows    own\n" in output
        assert "by selfdraft 0.0.1 (not used: this is " in output
        assert f"by selfdraft {key.version}\n" in output, "no such note where it is used"
        assert f"cannot use the profile {damaged}" in output


class TestShow:
    def test_no_profile(self, store: Store, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "show", folder, "--dtype", "bfloat16"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"selfdraft profile: error: nothing has been learned about {folder} on this device")
        assert f"Run: selfdraft calibrate {folder} --dtype bfloat16" in error

    def test_some_of_it(self, key: ProfileKey, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "show", folder, "--brief"]) == 0
        output = capsys.readouterr().out
        assert "milliseconds (measured after 64, 512 tokens" in output
        assert "after a text of 512 tokens prune drafts without a1-2,m2: predicted " in output
        assert "every skip set" not in output

    def test_all_of_it(self, key: ProfileKey, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "show", folder, "--context", "100"]) == 0
        lines = capsys.readouterr().out.splitlines()
        begin = lines.index("every skip set, after 100 tokens (cost: of a drafted token, plain pass = 1)") + 2
        rows = [line.split() for line in lines[begin : lines.index("", begin)]]
        assert [row[-1] for row in rows] == ["a1", "a2", "a1,m2", "a1-2,m2", "a1-2,m2-3"]
        assert next(row for row in rows if row[-1] == "a1,m2")[-2] == "1.27x", "measured with that set alone"
        assert next(row for row in rows if row[-1] == "a1-2,m2")[-2] == "-"
        assert [row[-1] for row in rows if row[0] == "*"] == ["a1-2,m2-3"]

    @pytest.mark.parametrize("damage", ["file", "latency", "frontier", "layers"])
    def test_damage(
        self, damage: str, store: Store, key: ProfileKey, folder: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if damage == "file":
            store.path_of(key).write_text('{"selfdraft_profile": 99}')
        elif damage == "latency":
            store.set_latency(key, {"attention": 3})
        else:
            frontier = [{"skip": "a1"}] if damage == "frontier" else [{"skip": "a77", "lost": 0.1, "match": 0.9}]
            store.update(key, "prune", Artefact({"frontier": frontier}))
        assert main(["profile", "show", folder]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"again with: selfdraft calibrate {folder}" in error

    def test_latency_alone(
        self, store: Store, key: ProfileKey, folder: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store.remove(key)
        store.set_latency(key, learned.latency().to_json())
        assert main(["profile", "show", folder]) == 0
        assert "no skip sets yet: selfdraft calibrate --strategy prune finds them" in capsys.readouterr().out


def test_remove(store: Store, key: ProfileKey, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    store.path_of(key).write_text("damaged")
    assert main(["profile", "remove", folder]) == 0
    assert f"forgotten: {folder} on {key.device}, float32" in capsys.readouterr().out
    assert store.load(key) is None
    assert main(["profile", "remove", folder]) == 0
    assert f"nothing was known about {folder}" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ figures and picture


def realistic(num_layers: int = 28) -> Profile:
    """A frontier of a model of usual size, with trials on it and beside it."""
    order = [(7 * number) % (2 * num_layers - 4) + 2 for number in range(num_layers)]
    skips = [SkipSet.of_numbers(order[: count + 1]) for count in range(len(order))]
    frontier = [
        {"skip": str(skip), "lost": 0.01 * n, "match": 1 - 0.004 * n - 0.0005 * n * n} for n, skip in enumerate(skips)
    ]
    trials = [{**TRIALS[1], "skip": str(skips[number]), "match": frontier[number]["match"]} for number in (5, 14, 15)]
    fit = learned.latency(
        attention=Line(9e-9, 2.4e-5),
        mlp_seconds=4.1e-5,
        rest_seconds=1.6e-4,
        plain=Line(2.5e-7, 2e-3),
        widths=(1, 8, 16),
        verify=(Line(2.5e-7, 2e-3), Line(2.6e-7, 2.1e-3), Line(2.7e-7, 2.3e-3)),
        lengths=(64, 512, 4096),
    )
    values = {"frontier": frontier, **FACTS, "trials": trials}
    made = "2026-01-01T00:00:00+00:00"
    return Profile(learned.profile().key, SCHEMA, made, made, {}, fit.to_json(), {"prune": Artefact(values)})


def returned(value: Any, *arguments: Any) -> Any:
    return value


class TestSets:
    def test_figures_of_a_set(self) -> None:
        """Seconds by hand: five layers of 1 ms and 2 ms, 0.5 ms more; 16 ms to verify. A second token does not pay."""
        fit = learned.latency(attention=Line(0.0, 1e-3), plain=Line(0.0, 15.5e-3), verify=(Line(0.0, 16e-3),) * 2)
        found = read_sets(learned.profile(fit), NUM_LAYERS, 512)
        one = found.find(SkipSet.parse("a1-2,m2-3"))
        assert one.cost == pytest.approx((15.5 - 6) / 15.5)
        assert (one.num_drafted, one.predicted) == (1, pytest.approx((1 + 0.7) / (9.5 + 16) * 15.5))
        assert (found.find(SkipSet.parse("m1")).match, found.find(SkipSet.parse("m1")).predicted) == (None, None)
        with pytest.raises(OptionError, match="names attention layer 9, but the model has 5 layers"):
            found.find(SkipSet.parse("a9"))

    def test_lines_of_equal_speed_pass_through_the_predictions(self) -> None:
        found = read_sets(realistic(), 28, 512)
        one = found.frontier[10]
        speeds = profile_charts.speed_ups(found.costs, np.array([one.match, 1.0]), np.array([0.3, one.cost]))
        assert speeds[0, 1] == pytest.approx(one.predicted)
        assert speeds[1, 0] > speeds[1, 1] > speeds[0, 1]

    @pytest.mark.parametrize("length", [16, 512, 700, 5000])
    def test_the_choice_is_that_of_the_strategy(self, length: int) -> None:
        """Where attention is dear, drafting pays; where verification is, nothing does."""
        dear = learned.latency(plain=Line(0.0, 15e-3), verify=(Line(0.0, 0.1), Line(0.0, 0.1)))
        for profile, num_layers, drafts in ((realistic(), 28, True), (learned.profile(dear), NUM_LAYERS, False)):
            chosen = read_sets(profile, num_layers, length).chosen
            assert bool(chosen) == drafts
            fit = LatencyFit.from_json(profile.latency or {}, num_layers)
            values = profile.artefacts["prune"].values
            strategy = Prune(Prune.Options(), Knowledge(num_layers, partial(returned, fit), partial(returned, values)))
            strategy.begin(0, {})
            assert strategy.plan(0, PlanContext(length, 0, pytest.fail)).skip == chosen

    def test_the_chosen_set_is_always_shown(self) -> None:
        found = read_sets(realistic(), 28, 512)
        assert found.chosen
        for one in found.frontier:
            shown = profile_charts.some_sets(dataclasses.replace(found, chosen=one.skip))
            assert one in shown
            assert len(shown) == profile_charts.MAX_SETS
            assert [found.frontier.index(each) for each in shown] == sorted(map(found.frontier.index, shown))


class TestPlot:
    def test_a_picture(self, key: ProfileKey, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("matplotlib")
        file = tmp_path / "out" / "profile.png"
        file.parent.mkdir()
        assert main(["profile", "plot", folder, "--output", str(file), "--set", "a1,m2", "m1-3"]) == 0
        assert file.read_bytes().startswith(b"\x89PNG")
        assert list(file.parent.iterdir()) == [file], "the temporary file is gone"
        assert capsys.readouterr().out == f"{file}\n"

    @pytest.mark.parametrize("known", ["frontier", "latency"])
    def test_of_what_is_known(self, known: str) -> None:
        pytest.importorskip("matplotlib")
        profile = realistic()
        if known == "latency":
            profile = dataclasses.replace(profile, artefacts={})
        drawn = profile_charts.sets_picture(read_sets(profile, 28, 512), "a model")
        assert int.from_bytes(drawn[16:20], "big") == 150 * 12.5

    def test_what_cannot_be_drawn(
        self, store: Store, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("selfdraft.cli.profile.require_matplotlib", lambda *words: None)
        assert main(["profile", "plot", folder, "--output", "/nowhere/profile.png"]) == 2
        assert "cannot write /nowhere/profile.png: there is no folder /nowhere" in capsys.readouterr().err
        assert main(["profile", "plot", folder, "--output", "profile.png", "--set", "x3"]) == 2
        assert "cannot read 'x3' in the skip set" in capsys.readouterr().err

    def test_without_matplotlib(
        self, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
        assert main(["profile", "plot", folder, "--output", "profile.png"]) == 2
        assert "needs matplotlib. Install with: pip install matplotlib" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ lemma 4.1

CIRCLE = torch.eye(2)
"""Two words at right angles: |w_0 - w_1|^2 = 2."""


def at(degrees: float, length: float = 1.0) -> torch.Tensor:
    return length * torch.tensor([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]).double()


class TestLemma:
    def test_by_hand(self) -> None:
        """x = (3, 0): margin 3, |x|^2 = 9, so the cosine may lack 9 / (2 * 9 * 2) = 1/4: 41.4 degrees."""
        states = torch.stack([at(0, 0.2), at(41.3, 7.0), at(41.5), at(-44.9), at(46.0), at(180.0)])[:, None]
        found = lemma.check(at(0, 3.0)[None], states, CIRCLE)
        assert found.allowed.tolist() == pytest.approx([0.25])
        assert found.is_close[:, 0].tolist() == [True, True, False, False, False, False]
        assert found.is_same[:, 0].tolist() == [True, True, True, True, False, False]
        assert found.cosines[1, 0].item() == pytest.approx(math.cos(math.radians(41.3)))
        assert not found.violations.any()

    def test_where_two_words_tie_there_is_no_choice_to_keep(self) -> None:
        found = lemma.check(at(45)[None], at(45)[None, None], CIRCLE)
        assert not found.is_close.any()

    def test_a_vocabulary_in_parts_is_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Against the definition, written down plainly."""
        generator = torch.Generator().manual_seed(5)
        head = torch.randn(101, 16, generator=generator)
        target = torch.randn(7, 16, generator=generator)
        others = target + 0.02 * torch.randn(9, 7, 16, generator=generator)
        scores = target.double() @ head.double().T
        best = scores.topk(2, dim=-1)
        distances = torch.cdist(head.double()[best.indices[:, 0]], head.double()).amax(-1)
        margins = best.values[:, 0] - best.values[:, 1]
        allowed = margins.square() / (2 * target.double().square().sum(-1) * distances.square())
        cosines = torch.cosine_similarity(others.double(), target.double(), dim=-1)
        for size in (lemma._CHUNK_BYTES, 8 * 3 * (16 + 70)):
            monkeypatch.setattr(lemma, "_CHUNK_BYTES", size)
            found = lemma.check(target, others, head)
            torch.testing.assert_close(found.allowed, allowed)
            torch.testing.assert_close(found.cosines, cosines)
            assert found.is_close.tolist() == (cosines >= 1 - allowed).tolist()
            assert (
                found.is_same.tolist() == ((others.double() @ head.double().T).argmax(-1) == scores.argmax(-1)).tolist()
            )
            assert found.is_close.any()
            assert not found.is_close.all()

    @pytest.mark.parametrize("family", FAMILIES)
    def test_on_pico_models(self, family: str) -> None:
        found = examined(family)
        assert not lemma.counterexamples([found])
        total = lemma.table([found], 2 * NUM_LAYERS)[-1]
        assert 0.3 < total.same_share < 1, "else nothing is put to the test"
        assert total.num_networks == NUM_LAYERS
        assert [one.weight for one in found.candidates] == [1, 2, 3, 4, 5]

    def test_premises_hold_and_are_kept(self) -> None:
        """Of all pico models together, so that the test above is not empty."""
        shares = [lemma.table([examined(family)], 2 * NUM_LAYERS)[-1].premise_share for family in FAMILIES]
        assert sum(share > 0 for share in shares) > len(FAMILIES) / 3

    def test_a_state_of_its_own(self) -> None:
        """x' = x: the premise holds wherever there is a choice, and so does the conclusion."""
        generator = torch.Generator().manual_seed(1)
        states, head = torch.randn(20, 32, generator=generator), torch.randn(112, 32, generator=generator)
        found = lemma.check(states, states[None], head)
        assert found.is_close.all()
        assert found.is_same.all()
        assert found.cosines.tolist() == [[1.0] * 20]

    def test_the_table(self) -> None:
        """Rows by share: weights 1 and 2 of 20 are up to 10 %, weight 3 is up to 20 %."""
        candidates = [Candidate(frozenset([weight]), weight, 1.0) for weight in (1, 2, 3)]
        cosines = torch.tensor([[0.9, 1.0], [0.8, 0.9], [0.5, 0.7]]).double()
        is_close = torch.tensor([[True, True], [False, False], [True, False]])
        is_same = torch.tensor([[True, True], [True, False], [False, False]])
        judged = [Judged(candidates, lemma.Check(cosines, is_close, is_same, torch.tensor([0.1, 0.3]).double()))]
        first, second, total = lemma.table(judged, 20)
        assert first == lemma.Row(0.1, 2, 4, pytest.approx(0.9), 0.5, 0.75, 0)
        assert second == lemma.Row(0.2, 1, 2, pytest.approx(0.6), 0.5, 0.0, 1)
        assert total == lemma.Row(None, 3, 6, pytest.approx(0.8), 0.5, 0.5, 1)
        (one,) = lemma.counterexamples(judged)
        assert (one.text, one.token, one.skip, one.needed) == (0, 0, "m1", pytest.approx(0.9))

    def test_models_it_says_nothing_about(self) -> None:
        model: Any = copy.deepcopy(pico("llama"))
        bare = model.lm_head
        model.lm_head = torch.nn.Linear(32, 112).requires_grad_(False)
        with pytest.raises(UnsupportedModelError, match="the head of LlamaForCausalLM has a bias"):
            Lemma(model)
        model.lm_head = bare
        bare.register_forward_hook(lambda module, inputs, output: 2 * output.roll(1, -1))
        with pytest.raises(UnsupportedModelError, match="gives other scores than its weight"):
            Lemma(model).examine(continued(model))
        with pytest.raises(UnsupportedModelError, match="the model has 2 layers"):
            Lemma(pico("llama", num_hidden_layers=2))


@cache
def examined(family: str) -> Judged:
    return Lemma(pico(family)).examine(continued(pico(family)))


def continued(model: Any) -> Text:
    prompt = [3, 1, 4, 1, 5, 9]
    written = Engine(model, strategy="off", profile=None).generate(prompt, max_new_tokens=16).tokens
    return Text((*prompt, *written), len(prompt))


class TestLemmaCommand:
    FEW = ("--texts", "2", "--tokens", "6")

    @pytest.fixture(autouse=True)
    def prompts(self, tmp_path: Path) -> list[str]:
        """Short ones: a pico model's context is short."""
        file = tmp_path / "prompts.jsonl"
        file.write_text(
            "".join(json.dumps({"domain": "d", "prompt": text}) + "\n" for text in ("abcabc", "xyz", "1+2"))
        )
        return ["--prompts", str(file), *self.FEW]

    def test_a_table(self, folder: str, prompts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "lemma", folder, *prompts]) == 0
        output = capsys.readouterr().out
        assert f"{folder} (cpu, float32): 12 tokens in 2 texts" in output
        rows = {line[:12].strip(): line[12:].split() for line in output.splitlines()}
        for share in ("up to 10%", "up to 20%", "up to 30%", "up to 40%", "up to 50%"):
            assert rows[share][:2] == ["2", "12"]
        assert rows["all"][:2] == ["10", "60"]
        assert rows["all"][-1] == "0"
        assert "The premise holds in " in output

    def test_a_document(self, folder: str, prompts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "lemma", folder, "--json", *prompts]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["num_texts"], document["num_tokens"], document["counterexamples"]) == (2, 12, [])
        assert [row["up_to"] for row in document["rows"]] == [0.1, 0.2, 0.3, 0.4, 0.5]
        assert sum(row["num_pairs"] for row in document["rows"]) == document["total"]["num_pairs"] == 60

    def test_a_violation(
        self, folder: str, prompts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With a bound that lets anything through, every other choice is a counterexample."""
        monkeypatch.setattr(lemma, "allowed_gap", lambda margin, length, widest: torch.full_like(margin, 2.0))
        assert main(["profile", "lemma", folder, "--json", *prompts]) == 1
        total = json.loads(capsys.readouterr().out)["total"]
        assert total["premise_share"] == 1
        assert total["num_violations"] == round((1 - total["same_share"]) * total["num_pairs"]) > 0
        assert main(["profile", "lemma", folder, *prompts]) == 1
        output = capsys.readouterr().out
        assert f"The lemma is violated in {total['num_violations']} of 60 pairs" in output
        assert "another choice" in output


def test_a_fit_survives_the_profile() -> None:
    """What the picture draws is what was measured."""
    assert read_sets(realistic(), 28, 512).costs.fit == LatencyFit.from_json(realistic().latency or {}, 28)
