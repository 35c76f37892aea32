"""What `knn`, `swift` and `draft-verify` leave in a profile: as `selfdraft profile` lists, shows and draws it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
from selfdraft.cli.profile_charts import Cloud
from selfdraft.profiles.key import ProfileKey
from selfdraft.profiles.profile import Artefact
from selfdraft.profiles.searches import Where, read_domains
from selfdraft.profiles.store import Store
from selfdraft.strategies.timeline import KnownSearch, read_search

Said = Callable[..., str]
Keep = Callable[[str, Artefact], None]
HERE = Where(learned.latency(), NUM_LAYERS, 512)
TEXT = {"seconds": 1.0, "optimise_seconds": 0.1, "plain_seconds": 1.2, "matchness": 0.6, "ratio": 0.4}
STEP = {"seconds": 0.0, "matchness": 0.5, "best": 0.5, "ratio": 0.45, "is_best": True}
STATE = {"phase": "accelerate", "ratio": 0.4, "step": 3, "skip": "a1,m2", "matchness": 0.8, "snapshots": {"0": "a1"}}


def shown(num_layers: int = NUM_LAYERS, **artefacts: Artefact) -> str:
    """What `profile show` says of these alone."""
    known = {name.replace("_", "-"): artefact for name, artefact in artefacts.items()}
    return profile_text.as_text(dataclasses.replace(learned.profile(), artefacts=known), num_layers)


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


FEW_WORDS: list[tuple[dict[str, Artefact], str]] = [
    (
        {
            **three(),
            "knn": Artefact({**searched.knn(3).values, "trials": [{}, {}]}),
            "swift": Artefact({**searched.swift().values, "matchness": 0.832}),
        },
        "draft-verify (mixed, first), knn (3 domains, 2 trials), swift (40 steps, matchness 83%)",
    ),
    (damaged(), "draft-verify (damaged), knn (damaged), swift (damaged)"),
    ({"swift": Artefact({**STATE, "step": 1, "matchness": None})}, "swift (1 step)"),
]


@pytest.mark.parametrize(("artefacts", "words"), FEW_WORDS, ids=["all", "damaged", "begun"])
def test_list(artefacts: dict[str, Artefact], words: str, home: Path, said: Said) -> None:
    for name, artefact in artefacts.items():
        Store().update(ProfileKey("llama-0", "cpu", "float32", name="a-model"), name, artefact)
    assert f"knows    {words}\n" in said("profile", "list")


class TestShow:
    def test_domains(self) -> None:
        """The third does not pay: its frontier loses half of the choices with each sub-layer."""
        values = {**searched.knn(3).values, "general": searched.NOTHING_FOUND}
        part = shown(knn=Artefact(values)).split("\n\n")[-1]
        rows = [line.split("  ") for line in part.splitlines()]
        names = [next(filter(None, row)) for row in rows]
        assert names[1:6] == ["domain", "code", "math", "chat *", "general"]
        assert [cell.strip() for cell in rows[2] if cell.strip()][1:3] == ["40", "0.931"]
        assert part.splitlines()[4].split()[-6:] == ["attention,", "0", "MLP", "50.0%", "0.81x", "-"]
        assert part.splitlines()[5].endswith("not searched yet      -          -         -")
        assert "(nearest anchor by mean vectors; skip sets by prune, after 512 tokens)" in part
        assert part.endswith(
            "\n  (* decodes plainly, which promises more than the best set that was found, shown here)"
        )
        assert "*" not in shown(knn=searched.knn(2))

    def test_domains_by_tokens_per_second(self) -> None:
        found = shown(knn=timed(skip=""))
        assert "plain decoding was fastest  " in found
        assert "*" not in found
        assert "not searched yet" in shown(knn=timed(skip="", num_tried=0))
        empty = Artefact({**timed().values, "general": {"sets": {}}})
        assert "\nknn: cannot be read (ValueError: general has no set)" in shown(knn=empty)

    def test_domains_without_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unmeasured = dataclasses.replace(learned.profile(), latency=None)
        monkeypatch.setattr(learned, "profile", lambda: unmeasured)
        found = shown(knn=Artefact({**searched.knn(1).values, "general": searched.NOTHING_FOUND}))
        assert "by measured seconds" in found
        assert "not searched yet" in found

    def test_domains_that_draft_with_the_general_sets(self) -> None:
        values = searched.knn(2).values
        first, second = values["domains"]
        unsure = {**first, "found": {**first["found"], "surety": 0.4}}
        found = shown(knn=Artefact({**values, "domains": [unsure, second]}))
        assert f"  {first['name']} +" in found
        assert f"  {second['name']} +" not in found
        assert "(+ drafts with the general sets: its own, shown here, do not surely serve it better)" in found

    def test_a_search(self) -> None:
        texts = [{**TEXT, "num_tokens": 30, "phase": "optimise"}] * 2
        found = shown(swift=Artefact({**STATE, "texts": texts, "steps": []}))
        assert "  accelerating, 3 steps, ratio 0.4, matchness 80.0%\n" in found
        assert "  skipped sub-layers: 1 attention, 1 MLP (a1,m2)\n" in found
        assert "  2 texts, 60 tokens: 10.0% of the time on optimising, overall speed-up 1.20x" in found

    def test_sets_by_tokens_per_second(self) -> None:
        found = shown(draft_verify=three()["draft-verify"])
        rows = {line[:22].strip(): line[22:].split() for line in found.splitlines()}
        assert rows["first (incomplete)"] == ["1", "attention,", "0", "MLP", "290.0", "580.0", "0.50x", "12"]
        assert rows["mixed"] == ["2", "attention,", "1", "MLP", "609.0", "580.0", "1.05x", "87"]
        assert "no skip set yet" in shown(draft_verify=Artefact({"sets": {}}))

    @pytest.mark.parametrize("name", ["knn", "swift", "draft-verify"])
    def test_what_cannot_be_read(self, name: str) -> None:
        """Damage, and sets of another model, which name layers that there are not."""
        assert f"\n{name}: cannot be read (" in shown(**{name: damaged()[name]})
        assert f"{name}: cannot be read (OptionError" in shown(2, **{name: three()[name]})


# ------------------------------------------------------------------------------------------------ figures


class TestDomains:
    def test_a_set_for_each(self) -> None:
        """Of a frontier what `prune` would choose; plain decoding promises more than the third."""
        values = {**searched.knn(3).values, "general": searched.NOTHING_FOUND}
        known = read_domains(values, HERE)
        assert [one.is_outdone for one in known.domains] == [False, False, True]
        for one, kept in zip(known.domains, values["domains"], strict=True):
            assert one.found is not None
            match = {point["skip"]: point["match"] for point in kept["found"]["frontier"] if point["skip"]}
            assert match[str(one.found.skip)] == one.found.match
            assert one.found.predicted is not None
            assert (one.found.predicted > 1) is not one.is_outdone
        assert (known.general.found, known.general.is_searched, known.general.is_outdone) == (None, False, False)

    def test_sets_by_tokens_per_second(self) -> None:
        found = read_domains(searched.knn(1, search="draft-verify").values, HERE).domains[0].found
        assert found is not None
        assert (found.match, found.measured) == (None, pytest.approx(609 / 580))

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
        assert searching((100, "optimise"), steps=(40, 90)).ratios == [(40, 0.45), (100, 0.4)]
        found = searching((100, "optimise"), steps=(40, 150))
        assert found.in_use == [(40, 0.5), (100, 0.6), (150, 0.5)]
        assert [found.matchness_at(step) for step in (0, 1)] == [None, 0.5]

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
    def keep(self, home: Path, folder: str) -> Keep:
        """Into the profile of the model in the folder."""
        key = ProfileKey.of(pico("llama"), folder)
        Store().set_latency(key, learned.latency().to_json())
        return lambda name, artefact: Store().update(key, name, artefact)

    @pytest.fixture
    def plot(self, folder: str, tmp_path: Path, said: Said) -> Said:
        """Into `drawn.png`."""
        output = str(tmp_path / "drawn.png")
        return lambda name, status: said("profile", "plot", folder, "--of", name, "--output", output, status=status)

    @pytest.mark.parametrize("name", ["knn", "swift"])
    def test_a_picture(self, name: str, keep: Keep, plot: Said, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        keep(name, three()[name])
        plot(name, 0)
        assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        ("name", "command"),
        [("knn", "--strategy knn --domain-field domain --prompts FILE"), ("swift", "--strategy swift")],
    )
    def test_what_is_not_there_or_damaged(
        self, name: str, command: str, keep: Keep, plot: Said, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("selfdraft.cli.profile.require_matplotlib", lambda *words: None)
        missing = plot(name, 2)
        assert f"the profile of {folder} has nothing of `{name}` yet. Make it with: selfdraft calibrate" in missing
        keep(name, damaged()[name])
        broken = plot(name, 2)
        assert f"of `{name}` cannot be read (" in broken
        assert missing.endswith(f"{command}\n")
        assert broken.endswith(f"{command}\n")

    def test_what_stands_beside_a_strip(self) -> None:
        """The third decodes plainly, the first was not searched yet, plain decoding was fastest in the second."""
        values = searched.knn(3).values
        given = [searched.NOTHING_FOUND, timed(skip="").values["domains"][0]["found"], values["domains"][2]["found"]]
        one_each = [{**one, "found": found} for one, found in zip(values["domains"], given, strict=True)]
        strips = profile_charts.domain_strips(read_domains({**values, "domains": one_each}, HERE))
        first, second, third, last = (strip.right for strip in strips)
        assert (first, second) == ("not searched yet", "plain decoding was fastest")
        assert third.startswith("decodes plainly; best set:\n")
        assert third.endswith(" 0 MLP skipped\nmatch 50.0%   predicted 0.81x")
        assert "plainly" not in last

    def test_a_search_that_has_just_begun(self) -> None:
        pytest.importorskip("matplotlib")
        found = read_search(searched.swift(3, 0).values)
        assert profile_charts.swift_picture(found, NUM_LAYERS, "a model").startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        ("array", "damage"),
        [
            ("anchors", lambda anchors: anchors[1:]),
            ("sample_domains", lambda labels: labels + 1),
            ("samples", lambda samples: torch.full_like(samples, torch.nan)),
            ("samples", lambda samples: None),
        ],
        ids=["shape", "label", "number", "missing"],
    )
    def test_vectors_that_cannot_be_drawn(self, array: str, damage: Callable[[torch.Tensor], Any]) -> None:
        content = searched.knn(2).content
        content[array] = damage(content[array])
        with pytest.raises((ValueError, KeyError)):
            profile_charts.read_clouds({name: value for name, value in content.items() if value is not None})
