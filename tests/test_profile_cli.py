"""`selfdraft profile`: profiles as users see them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import learned
from pico import NUM_LAYERS, pico
from selfdraft import SkipSet
from selfdraft.cli import profile_charts
from selfdraft.cli.main import main
from selfdraft.economics import LatencyFit, Line
from selfdraft.errors import OptionError
from selfdraft.profiles.contents import read_sets
from selfdraft.profiles.key import ProfileKey
from selfdraft.profiles.profile import SCHEMA, Artefact, Profile
from selfdraft.profiles.store import Store
from selfdraft.protocols import Knowledge, PlanContext
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


def with_profile(store: Store, folder: str) -> ProfileKey:
    """Of a pico model."""
    key, known = ProfileKey.of(pico("llama"), folder), learned.profile(prune={"frontier": learned.FRONTIER, **FACTS})
    assert known.latency is not None
    store.set_latency(key, known.latency)
    store.update(key, "prune", known.artefacts["prune"])
    return key


key = pytest.fixture(with_profile)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `selfdraft profile` prints."""

    def run(*words: str) -> str:
        assert main(["profile", *words]) == 0
        return capsys.readouterr().out

    return run


def test_list(store: Store, folder: str, said: Callable[..., str]) -> None:
    """Also a profile of another version, and one that cannot be read."""
    assert f"no profiles in {store.folder} yet. Make one with: selfdraft calibrate" in said("list")
    key = with_profile(store, folder)
    old = ProfileKey("llama-0", "some GPU", "bfloat16", version="0.0.1", name="old-model")
    store.update(old, "own", Artefact({"learned": 3}))
    damaged = store.folder / "llama-1-cpu-float32-0.1.0" / "profile.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    output = said("list")
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
        assert f"selfdraft profile: error: nothing has been learned about {folder} on this device" in error
        assert f"Run: selfdraft calibrate {folder} --dtype bfloat16" in error

    def test_some_of_it(self, store: Store, key: ProfileKey, folder: str, said: Callable[..., str]) -> None:
        output = said("show", folder, "--brief")
        assert "milliseconds (measured after 64, 512 tokens" in output
        assert "after a text of 512 tokens prune drafts without a1-2,m2-3: predicted " in output
        assert "every skip set" not in output
        store.remove(key)
        store.set_latency(key, learned.latency().to_json())
        assert "no skip sets yet: selfdraft calibrate --strategy prune finds them" in said("show", folder)

    def test_all_of_it(self, key: ProfileKey, folder: str, said: Callable[..., str]) -> None:
        lines = said("show", folder, "--context", "100").splitlines()
        begin = lines.index("every skip set, after 100 tokens (cost: of a drafted token, plain pass = 1)") + 2
        assert lines[begin - 1].split() == ["match", "cost", "tokens", "predicted", "skip", "set"], "nothing of trials"
        rows = {row[-1]: row for row in map(str.split, lines[begin : lines.index("", begin)])}
        assert list(rows) == ["a1", "a2", "a1,m2", "a1-2,m2", "a1-2,m2-3"]
        assert [skip for skip, row in rows.items() if row[0] == "*"] == ["a1-2,m2-3"]

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


def test_remove(store: Store, key: ProfileKey, folder: str, said: Callable[..., str]) -> None:
    store.path_of(key).write_text("damaged")
    assert f"forgotten: {folder} on {key.device}, float32" in said("remove", folder)
    assert store.load(key) is None
    assert f"nothing was known about {folder}" in said("remove", folder)


# ------------------------------------------------------------------------------------------------ figures and picture


def realistic(num_layers: int = 28) -> Profile:
    """A frontier of a model of usual size, with trials on it and beside it."""
    order = [(7 * number) % (2 * num_layers - 4) + 2 for number in range(num_layers)]
    skips = [SkipSet.of_numbers(order[: count + 1]) for count in range(len(order))]
    frontier = [
        {"skip": str(skip), "lost": 0.01 * n, "match": 1 - 0.004 * n - 0.0005 * n * n} for n, skip in enumerate(skips)
    ]
    trials = [{**TRIALS[1], "skip": str(skips[number]), "match": frontier[number]["match"]} for number in (5, 14, 15)]
    passes = Line(2.5e-7, 2e-3), Line(2.6e-7, 2.1e-3), Line(2.7e-7, 2.3e-3)
    sub_layers = {"attention": Line(9e-9, 2.4e-5), "mlp_seconds": 4.1e-5, "rest_seconds": 1.6e-4}
    fit = learned.latency(**sub_layers, plain=passes[0], verify=passes, widths=(1, 8, 16), lengths=(64, 512, 4096))
    values = {"frontier": frontier, **FACTS, "trials": trials}
    made = "2026-01-01T00:00:00+00:00"
    return Profile(learned.profile().key, SCHEMA, made, made, {}, fit.to_json(), {"prune": Artefact(values)})


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
            known = Knowledge(num_layers, lambda *_, fit=fit: fit, lambda *_, values=values: values)
            strategy = Prune(Prune.Options(), known)
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


def test_a_picture(key: ProfileKey, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "out" / "profile.png"
    file.parent.mkdir()
    assert main(["profile", "plot", folder, "--output", str(file), "--set", "a1,m2", "m1-3"]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert list(file.parent.iterdir()) == [file], "the temporary file is gone"
    assert capsys.readouterr().out == f"{file}\n"


@pytest.mark.full
@pytest.mark.parametrize("artefacts", [{}, realistic().artefacts], ids=["latency", "frontier"])
def test_a_picture_of_what_is_known(artefacts: Any) -> None:
    pytest.importorskip("matplotlib")
    profile = dataclasses.replace(realistic(), artefacts=artefacts)
    drawn = profile_charts.sets_picture(read_sets(profile, 28, 512), "a model")
    assert int.from_bytes(drawn[16:20], "big") == 150 * 12.5


def test_without_matplotlib(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert main(["profile", "plot", folder, "--output", "profile.png"]) == 2
    assert 'needs matplotlib. Install with: pip install "selfdraft[plot]"' in capsys.readouterr().err
