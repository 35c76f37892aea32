"""What `knn`, `swift` and `draft-verify` leave in a profile: as `selfdraft profile` lists, shows and draws it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import learned
import searched
from pico import NUM_LAYERS, pico
from selfdraft import SkipSet
from selfdraft.cli import profile_charts, profile_text
from selfdraft.cli.main import main
from selfdraft.cli.profile_charts import Cloud
from selfdraft.profiles.key import ProfileKey
from selfdraft.profiles.profile import Artefact, Profile
from selfdraft.profiles.searches import Where, read_domains
from selfdraft.profiles.store import Store
from selfdraft.strategies.timeline import KnownSearch, read_search

HERE = Where(learned.latency(), NUM_LAYERS, 512)
TEXT = {"seconds": 1.0, "optimise_seconds": 0.1, "plain_seconds": 1.2, "matchness": 0.6, "ratio": 0.4}
STEP = {"seconds": 0.0, "matchness": 0.5, "best": 0.5, "ratio": 0.45, "is_best": True}
STATE = {"phase": "accelerate", "ratio": 0.4, "step": 3, "skip": "a1,m2", "matchness": 0.8, "snapshots": {"0": "a1"}}


def knowing(artefacts: dict[str, Artefact]) -> Profile:
    return dataclasses.replace(learned.profile(), artefacts=artefacts)


def three() -> dict[str, Artefact]:
    return {
        "knn": searched.knn(3),
        "swift": searched.swift(),
        "draft-verify": Artefact({**searched.DRAFT_VERIFY, "is_complete": False, "seconds": 60.0}),
    }


def timed(**changed: Any) -> Artefact:
    """`knn` with one domain whose set was found by tokens per second."""
    values = searched.knn(1, search="draft-verify").values
    one = {"mixed": {**searched.DRAFT_VERIFY["sets"]["mixed"], **changed}}
    return Artefact({**values, "domains": [{**values["domains"][0], "found": {"sets": one}}]})


def damaged() -> dict[str, Artefact]:
    """One of each kind of damage, named by the artefact it is in."""
    return {
        "knn": Artefact({"domains": [3], "general": {}}),
        "swift": Artefact({"step": "many", "matchness": 0.4}),
        "draft-verify": Artefact({"sets": {"mixed": {"skip": "b3", "tokens_per_second": 1, "plain": 1}}}),
    }


def searching(*texts: tuple[int, str], steps: tuple[int, ...] = (), **changed: Any) -> KnownSearch:
    """Texts of N tokens that ended in a phase; steps after N tokens."""
    written = [{**TEXT, "num_tokens": length, "phase": phase} for length, phase in texts]
    made = [{**STEP, "step": number, "num_tokens": at} for number, at in enumerate(steps, start=1)]
    return read_search({**STATE, "texts": written, "steps": made, **changed})


# ------------------------------------------------------------------------------------------------ as text


class TestList:
    @pytest.fixture(autouse=True)
    def store(self, home: Path) -> Store:
        return Store()

    def listed(self, store: Store, artefacts: dict[str, Artefact], capsys: pytest.CaptureFixture[str]) -> str:
        for name, artefact in artefacts.items():
            store.update(ProfileKey("llama-0", "cpu", "float32", name="a-model"), name, artefact)
        assert main(["profile", "list"]) == 0
        return capsys.readouterr().out.partition("knows    ")[2].partition("\n")[0]

    def test_in_a_few_words(self, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        known = three()
        known["knn"] = Artefact({**known["knn"].values, "trials": [{}, {}]}, known["knn"].arrays)
        known["swift"] = Artefact({**known["swift"].values, "matchness": 0.832})
        words = "draft-verify (mixed, first), knn (3 domains, 2 trials), swift (40 steps, matchness 83%)"
        assert self.listed(store, known, capsys) == words

    def test_damage(self, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        words = "draft-verify (damaged), knn (damaged), swift (damaged)"
        assert self.listed(store, damaged(), capsys) == words

    def test_before_a_first_step(self, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
        begun = {"swift": Artefact({**STATE, "step": 1, "matchness": None})}
        assert self.listed(store, begun, capsys) == "swift (1 step)"


class TestShow:
    def test_domains(self) -> None:
        """The third does not pay: its frontier loses half of the choices with each sub-layer."""
        values = {**searched.knn(3).values, "general": searched.NOTHING_FOUND}
        parts = profile_text.as_text(knowing({"knn": Artefact(values)}), NUM_LAYERS).split("\n\n")
        rows = [line.split("  ") for line in parts[-1].splitlines()]
        names = [next(filter(None, row)) for row in rows]
        assert names[1:6] == ["domain", "code", "math", "chat *", "general"]
        assert [cell.strip() for cell in rows[2] if cell.strip()][1:3] == ["40", "0.931"]
        assert parts[-1].splitlines()[4].split()[-6:] == ["attention,", "0", "MLP", "50.0%", "0.81x", "-"]
        assert parts[-1].splitlines()[5].endswith("not searched yet      -          -         -")
        assert "(nearest anchor by mean vectors; skip sets by prune, after 512 tokens)" in parts[-1]
        assert parts[-1].endswith(
            "\n  (* decodes plainly, which promises more than the best set that was found, shown here)"
        )

    def test_domains_that_all_draft(self) -> None:
        assert "*" not in profile_text.as_text(knowing({"knn": searched.knn(2)}), NUM_LAYERS)

    def test_domains_by_tokens_per_second(self) -> None:
        shown = profile_text.as_text(knowing({"knn": timed(skip="")}), NUM_LAYERS)
        assert "plain decoding was fastest  " in shown
        assert "*" not in shown
        assert "not searched yet" in profile_text.as_text(knowing({"knn": timed(skip="", num_tried=0)}), NUM_LAYERS)
        empty = Artefact({**timed().values, "general": {"sets": {}}})
        assert "\nknn: cannot be read (ValueError: general has no set)" in profile_text.as_text(
            knowing({"knn": empty}), NUM_LAYERS
        )

    def test_domains_without_seconds(self) -> None:
        values = {**searched.knn(1).values, "general": searched.NOTHING_FOUND}
        profile = dataclasses.replace(knowing({"knn": Artefact(values)}), latency=None)
        shown = profile_text.as_text(profile, NUM_LAYERS)
        assert "by measured seconds" in shown
        assert "not searched yet" in shown

    def test_a_search(self) -> None:
        texts = [{**TEXT, "num_tokens": 30, "phase": "optimise"}] * 2
        state = {**STATE, "texts": texts, "steps": []}
        shown = profile_text.as_text(knowing({"swift": Artefact(state)}), NUM_LAYERS)
        assert "  accelerating, 3 steps, ratio 0.4, matchness 80.0%\n" in shown
        assert "  skipped sub-layers: 1 attention, 1 MLP (a1,m2)\n" in shown
        assert "  2 texts, 60 tokens: 10.0% of the time on optimising, overall speed-up 1.20x" in shown

    def test_sets_by_tokens_per_second(self) -> None:
        shown = profile_text.as_text(knowing({"draft-verify": three()["draft-verify"]}), NUM_LAYERS)
        rows = {line[:22].strip(): line[22:].split() for line in shown.splitlines()}
        assert rows["first (incomplete)"] == ["1", "attention,", "0", "MLP", "290.0", "580.0", "0.50x", "12"]
        assert rows["mixed"] == ["2", "attention,", "1", "MLP", "609.0", "580.0", "1.05x", "87"]

    def test_damage_is_told(self) -> None:
        shown = profile_text.as_text(knowing(damaged()), NUM_LAYERS)
        for name in damaged():
            assert f"\n{name}: cannot be read (" in shown

    @pytest.mark.parametrize("name", ["knn", "swift", "draft-verify"])
    def test_of_another_model(self, name: str) -> None:
        """Sets that name layers which there are not."""
        assert f"{name}: cannot be read (OptionError" in profile_text.as_text(knowing({name: three()[name]}), 2)


# ------------------------------------------------------------------------------------------------ figures


class TestDomains:
    def test_a_set_for_each(self) -> None:
        """Of a frontier what `prune` would choose; of sets by tokens per second the one there is."""
        values = searched.knn(2).values
        found = read_domains(values, HERE)
        for one, kept in zip(found.domains, values["domains"], strict=True):
            assert one.found is not None
            match = {point["skip"]: point["match"] for point in kept["found"]["frontier"]}
            assert match[str(one.found.skip)] == one.found.match
            assert one.found.predicted is not None
            assert one.found.predicted > 1
        timed = read_domains(searched.knn(1, search="draft-verify").values, HERE).domains[0].found
        assert timed is not None
        assert (timed.match, timed.measured) == (None, pytest.approx(609 / 580))

    def test_nothing_found(self) -> None:
        values = {**searched.knn(1).values, "general": searched.NOTHING_FOUND}
        general = read_domains(values, HERE).general
        assert (general.found, general.is_searched, general.is_outdone) == (None, False, False)

    def test_plain_decoding_promises_more(self) -> None:
        values = searched.knn(3).values
        found = read_domains(values, HERE).domains
        assert [one.is_outdone for one in found] == [False, False, True]
        assert all(one.found is not None and one.found.skip for one in found)
        assert found[2].found is not None
        assert found[2].found.predicted is not None
        assert found[2].found.predicted < 1

    def test_the_plane(self) -> None:
        """Vectors that differ along two axes: lengths do not count, distances are kept, all variance is explained."""
        angles = np.array([0.0, 0.3, -0.3, 0.0, 0.0])
        others = np.array([0.0, 0.0, 0.0, 0.5, -0.5])
        directions = np.stack([np.sin(angles), np.sin(others), np.cos(angles) * np.cos(others)], 1)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        labels = np.zeros(5)
        chart = profile_charts.anchors_chart(
            ["code"], Cloud(directions[:2] * 7, labels[:2]), Cloud(directions[2:] * 0.1, labels[2:])
        )
        samples, anchors = (np.array(group.points) for group in chart.groups)
        assert (len(anchors), len(samples)) == (2, 3)
        assert abs(samples[1, 0] - samples[2, 0]) == pytest.approx(2 * np.sin(0.5), rel=1e-6)
        assert "the variance" in chart.x_label

    def test_one_vector_has_a_place(self) -> None:
        chart = profile_charts.anchors_chart(
            ["code"], Cloud(np.ones((1, 4)), np.zeros(1)), Cloud(np.ones((0, 4)), np.zeros(0))
        )
        assert [group.points for group in chart.groups] == [[], [(0.0, 0.0)]]
        assert chart.y_label == "second (0%)"


class TestTimeline:
    def test_phases(self) -> None:
        """A search ends with its last step, within a text; a resumed one begins with its first."""
        found = searching((100, "optimise"), (100, "accelerate"), (100, "accelerate"), steps=(40, 90, 150))
        assert found.phases == [(0, 150, "optimise"), (150, 300, "accelerate")]
        resumed = searching((100, "accelerate"), (100, "optimise"), (50, "accelerate"), steps=(30, 160, 210))
        assert resumed.phases == [
            (0, 30, "optimise"),
            (30, 160, "accelerate"),
            (160, 210, "optimise"),
            (210, 250, "accelerate"),
        ]
        assert searching(steps=(33, 35), phase="optimise").phases == [(0, 35, "optimise")]
        assert searching(steps=()).phases == []

    def test_what_is_in_use(self) -> None:
        found = searching((100, "optimise"), steps=(40, 150))
        assert found.in_use == [(40, 0.5), (100, 0.6), (150, 0.5)]
        assert [found.matchness_at(step) for step in (0, 1)] == [None, 0.5]

    def test_ratios(self) -> None:
        found = searching((100, "optimise"), steps=(40, 90))
        assert found.ratios == [(40, 0.45), (100, 0.4)]

    def test_speed(self) -> None:
        found = searching((100, "optimise"), (50, "optimise"))
        slow = dataclasses.replace(found.texts[1], seconds=3.0)
        found = dataclasses.replace(found, texts=[found.texts[0], slow])
        assert [text.speed_up for text in found.texts] == pytest.approx([1.2, 0.4])
        assert found.overall == pytest.approx([1.2, 2.4 / 4])
        assert found.optimise_share == pytest.approx(0.2 / 4)

    def test_strips(self) -> None:
        """The last is the set of now, also where a step that is kept is the last."""
        found = searching(snapshots={"0": "a1", "2": "a2", "3": "a3"})
        assert profile_charts.steps_shown(found) == [
            (0, SkipSet.parse("a1")),
            (2, SkipSet.parse("a2")),
            (3, SkipSet.parse("a1,m2")),
        ]


# ------------------------------------------------------------------------------------------------ pictures


class TestPlot:
    @pytest.fixture
    def store(self, home: Path, folder: str) -> Store:
        store = Store()
        store.set_latency(ProfileKey.of(pico("llama"), folder), learned.latency().to_json())
        return store

    def plot(self, folder: str, *options: str, output: Path | str = "profile.png") -> int:
        return main(["profile", "plot", folder, "--output", str(output), *options])

    @pytest.mark.parametrize("name", ["knn", "swift"])
    def test_a_picture(self, name: str, store: Store, folder: str, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        store.update(ProfileKey.of(pico("llama"), folder), name, three()[name])
        assert self.plot(folder, "--of", name, output=tmp_path / "drawn.png") == 0
        assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")

    def test_what_stands_beside_a_strip(self) -> None:
        """The third decodes plainly, the first was not searched yet, plain decoding was fastest in the second."""
        values = searched.knn(3).values
        given = [searched.NOTHING_FOUND, timed(skip="").values["domains"][0]["found"], values["domains"][2]["found"]]
        one_each = [{**one, "found": found} for one, found in zip(values["domains"], given, strict=True)]
        found = read_domains({**values, "domains": one_each}, HERE)
        first, second, third, last = profile_charts.domain_strips(found)
        assert (first.right, second.right) == ("not searched yet", "plain decoding was fastest")
        assert third.right.startswith("decodes plainly; best set:\n")
        assert third.right.endswith(" 0 MLP skipped\nmatch 50.0%   predicted 0.81x")
        assert "plainly" not in last.right

    def test_a_search_that_has_just_begun(self) -> None:
        pytest.importorskip("matplotlib")
        found = read_search(searched.swift(3, 0).values)
        assert profile_charts.swift_picture(found, NUM_LAYERS, "a model").startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        ("name", "command"),
        [("knn", "--strategy knn --domain-field domain --prompts FILE"), ("swift", "--strategy swift")],
    )
    def test_what_is_not_there_or_damaged(
        self,
        name: str,
        command: str,
        store: Store,
        folder: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr("selfdraft.cli.profile.require_matplotlib", lambda *words: None)
        assert self.plot(folder, "--of", name) == 2
        error = capsys.readouterr().err
        assert f"the profile of {folder} has nothing of `{name}` yet. Make it with: selfdraft calibrate" in error
        assert error.endswith(f"{command}\n")
        store.update(ProfileKey.of(pico("llama"), folder), name, damaged()[name])
        assert self.plot(folder, "--of", name) == 2
        error = capsys.readouterr().err
        assert f"of `{name}` cannot be read (" in error
        assert error.endswith(f"{command}\n")

    @pytest.mark.parametrize("damage", ["shape", "label", "number", "missing"])
    def test_vectors_that_cannot_be_drawn(self, damage: str) -> None:
        content = searched.knn(2).content
        if damage == "shape":
            content["anchors"] = content["anchors"][1:]
        elif damage == "label":
            content["sample_domains"] = content["sample_domains"] + 1
        elif damage == "number":
            content["samples"] = torch.full_like(content["samples"], torch.nan)
        else:
            del content["samples"]
        with pytest.raises((ValueError, KeyError)):
            profile_charts.read_clouds(content)
