"""Several machines and settings in one comparison: what runs, what is said, and whose figures they are."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from flatwalk.answer import across
from flatwalk.answer.explain import explain
from flatwalk.answer.results import (
    add_speedups,
    grouped,
    machine_label,
    place_label,
    speedup_ratio,
    time_ratio,
)
from flatwalk.definitions import settings, variations
from flatwalk.errors import UsageError
from tests import fake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flatwalk.answer.results import Response, Run
    from tests.conftest import Result

    Flatwalk = Callable[..., Result]

SHORT = ["--workload", "gups:64MiB", "--instructions", "4M", "--window", "100k", "--windows", "6"]
SHORT += ["--warmup", "200k", "--schemes", "radix4,fpt", "--no-report"]


def test_settings_make_a_grid() -> None:
    grid = variations.grid(["llc.size_bytes=4MiB,8MiB", "machine.walker.concurrent=1,2", "pwc.kind=none"])
    assert [variations.as_settings(point) for point in grid] == [
        {"llc.size_bytes": size, "walker.concurrent": walkers, "pwc.kind": "none"}
        for size in (4 << 20, 8 << 20)
        for walkers in (1, 2)
    ]
    assert variations.grid([]) == [()]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("llc.size_bytes=4194304", 4 << 20),
        ("llc.size_bytes=1.5MiB", 3 << 19),
        ("page_table_priority.window_instructions=100k", 100_000),
        ("memory.cl_ns=13.75", 13.75),
        ("scheme.shadow=true", True),
        ("core.branch_predictor=gshare", "gshare"),
        ('core.branch_predictor="gshare"', "gshare"),
        ('scheme.table.flatten=["L4L3", "L2L1"]', ["L4L3", "L2L1"]),
        ('pwc={kind = "none", a = 1}', {"kind": "none", "a": 1}),
        ('tlb.l2=[{pages = ["4K", "2M"], ways = 12}]', [{"pages": ["4K", "2M"], "ways": 12}]),
        ('machine.kind="a],b"', "a],b"),
        ("machine.kind='a,b'", "a,b"),
        (f"machine.kind={'[' * 3000}", "[" * 3000),
    ],
)
def test_a_value_is_what_the_key_takes(option: str, value: object) -> None:
    ((setting,),) = variations.grid([option])
    assert setting.value == value
    assert type(setting.value) is type(value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["llc.size_bytes"], "not KEY=VALUE"),
        (["llc.size_bytes="], "not KEY=VALUE"),
        (["llc.ways=,"], "not KEY=VALUE"),
        (["=1"], "not KEY=VALUE"),
        (["llc.ways=8", "machine.llc.ways=16"], "set twice"),
        (["scheme.name=x"], "changes no figure"),
        (["llc.size_bytes=4Mbit"], "not understood"),
    ],
)
def test_what_is_no_setting_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        variations.grid(options)


def _changed(machine: str, *options: str) -> dict[str, Any]:
    (point,) = variations.grid(options)
    return variations.machine(settings.machine(machine), point)


def test_a_machine_takes_a_setting_and_nothing_else_changes() -> None:
    file = settings.machine("skylake-server")
    options = [
        "llc.size_bytes=8MiB",
        "tlb.l2[1].entries=3072",
        "multicore.cores=2",
        'multicore.isolation="owners"',
    ]
    (point,) = variations.grid(options)
    changed = variations.machine(file, point)
    assert changed["llc"] == file["llc"] | {"size_bytes": 8 << 20}
    assert changed["tlb"]["l2"][0] == file["tlb"]["l2"][0] | {"entries": 3072}
    assert changed["multicore"] == {"cores": 2, "isolation": "owners"}
    for key in file.keys() - {"llc", "tlb", "multicore"}:
        assert changed[key] == file[key]
    assert file == settings.machine("skylake-server")
    assert _changed("skylake-server", 'pwc={kind="none"}')["pwc"] == {"kind": "none"}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("llc.size_byte=4MiB", "did you mean size_bytes"),
        ("lcc.size_bytes=4MiB", "did you mean llc"),
        ("llc.size_bytes=5MiB", "power of two"),
        ("llc.size_bytes=big", "must be a whole number"),
        ("tlb.l2.entries=1024", r"say which: tlb.l2\[1\]"),
        ("tlb.l2[9].entries=1024", "numbered from 1"),
        ("tlb.l2[0].entries=1024", "numbered from 1"),
        ("frequency_mhz.x=1", "is not a table"),
        ("frequency_mhz=2", "100 to 20000"),
        ("pwc.latency_cycles=9223372036854775808", "0 to 1000"),
        ("os.shootdown_cycles=9223372036854775807", "0 to 1000000000"),
        ("memory.banks=1024", "65536 at most with channels and ranks"),
    ],
)
def test_a_setting_that_no_machine_has_is_refused(option: str, words: str) -> None:
    others = ("memory.channels=64", "memory.ranks=64") if option.startswith("memory.banks") else ()
    with pytest.raises(UsageError, match=words):
        _changed("golden-cove", option, *others)


@pytest.mark.parametrize(
    ("machine", "option", "words"),
    [
        ("emt", "memory.bandwidth_gbs=1e-10", r"0\.001 to"),
        ("skylake-server", "virtualisation.pwc.latency_cycles=1001", "0 to 1000"),
    ],
)
def test_what_only_some_machines_have_has_limits_too(machine: str, option: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _changed(machine, option)


def _schemes(*options: str) -> list[dict[str, Any]]:
    (point,) = variations.grid(options)
    return variations.schemes([settings.scheme("radix4"), settings.scheme("fpt")], point)


def test_a_scheme_takes_the_settings_that_it_has() -> None:
    radix, fpt = _schemes("scheme.table.no_flatten_threshold=7", "llc.ways=4")
    assert radix == settings.scheme("radix4")
    assert fpt["table"] == settings.scheme("fpt")["table"] | {"no_flatten_threshold": 7}
    radix, fpt = _schemes("scheme.shadow=true")
    assert radix["shadow"] is fpt["shadow"] is True


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("scheme.table.no_flaten_threshold=7", "did you mean no_flatten_threshold"),
        ("scheme.tabel.levels=5", "did you mean table"),
        ("scheme.asap.range_registers=5", r"name a scheme with \[asap\]"),
        ("scheme.table.levels=9", "must be"),
    ],
)
def test_a_setting_that_no_scheme_has_is_refused(option: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _schemes(option)


def _two(seed: int, **changes: Any) -> Response:
    """radix4 and fpt on two machines, over the same windows, each of its own cycles."""
    rng = random.Random(seed)
    runs: list[Run] = []
    for machine in ("golden-cove", "zen4"):
        for scheme in ("radix4", "fpt"):
            run = fake.run(scheme, cycles=rng.randint(800, 1200))
            run["machine"] = machine
            run["settings"] = {}
            run["configuration"]["machine"] = settings.machine(machine)
            runs.append(run)
    return fake.sample(runs, **changes)


def test_runs_are_compared_with_their_own_machines() -> None:
    runs = _two(1)["runs"]
    for base, run in (runs[:2], runs[2:]):
        assert base["speedup"] == 1.0
        assert run["speedup"] == pytest.approx(base["cycles"] / run["cycles"])  # type: ignore[operator]
        assert run["speedup_change"] == pytest.approx(run["speedup"] / runs[1]["speedup"])  # type: ignore[operator]
        # zen4 runs at 5 GHz, golden-cove at 4.3 GHz.
        clock = 1.0 if run is runs[1] else 5000 / 4300
        assert run["machine_speedup"] == pytest.approx(runs[1]["cycles"] / run["cycles"] * clock)  # type: ignore[operator]
    assert [place_label(run, runs) for run in runs] == ["4 KiB pages on golden-cove"] * 2 + [
        "4 KiB pages on zen4"
    ] * 2
    one = [fake.run(), fake.run("fpt", cycles=900)]
    add_speedups(one)
    assert place_label(one[0], one) == "4 KiB pages"
    assert "speedup_change" not in one[1]


def test_a_change_of_the_speed_up_is_known_to_what_all_four_runs_do_not_share() -> None:
    """Against a jackknife over the windows, which knows nothing of how the interval is made."""
    for seed in range(5):
        response = _two(seed, windows=60, common=0.4, own=0.02)
        base, run, other_base, other = response["runs"]
        found = speedup_ratio((other, other_base), (run, base), response["sampling"])
        assert found is not None
        assert found.low is not None
        assert found.high is not None

        def without(left_out: int, runs: list[Run]) -> float:
            sums = [
                sum(
                    window["cycles"] or 0
                    for number, window in enumerate(one["windows"])
                    if number != left_out
                )
                for one in runs
            ]
            return sums[0] * sums[1] / (sums[2] * sums[3])

        order = [other_base, run, other, base]
        values = [without(number, order) for number in range(60)]
        mean = sum(values) / 60
        error = (59 / 60 * sum((value - mean) ** 2 for value in values)) ** 0.5
        assert (found.high - found.low) / 2 == pytest.approx(2 * error, rel=0.5)
        assert found.low < without(-1, order) < found.high
        # The windows' own differences of 40 % drop out.
        assert error < 0.02
        speed = time_ratio(other, run, response["sampling"])
        assert speed is not None
        assert speed.low is not None
        assert speed.low < speed.value


def test_every_sentence_says_its_machine() -> None:
    response = _two(3)
    told = explain(response)
    assert [group.label for group in told.groups] == ["4 KiB pages on golden-cove", "4 KiB pages on zen4"]
    assert all(point.topic.endswith(("on golden-cove", "on zen4")) for point in told.points)
    (point,) = told.machines
    assert point.topic == "Machines at 4 KiB pages"
    for run in response["runs"]:
        change = (run["speedup"] or 0) - 1
        amount = f"{abs(change):.0%}" if abs(change) >= 0.1 else f"{abs(change):.1%}"
        if run["scheme"] == "fpt":
            way = "faster" if change > 0 else "slower"
            assert f"on {run['machine']} {amount.replace('%', ' %')} {way}" in point.said


@pytest.mark.parametrize(
    ("cycles", "words"),
    [
        # radix4 and fpt here, and there: the same gain; half the gain; no telling.
        ((1000, 800, 500, 400), "the speed-up is the same, within ±0.5 %"),
        (
            (1000, 800, 1000, 900),
            "the speed-up is 12 % higher with llc.size_bytes=4MiB than with llc.size_bytes=8MiB",
        ),
        (
            (1000, 900, 1000, 800),
            "the speed-up is 12 % higher with llc.size_bytes=8MiB than with llc.size_bytes=4MiB",
        ),
        ((1000, 800, 1000, 803), "is not decided"),
        ((1000, 800, 1000, 810), "is not decided"),
    ],
)
def test_whether_a_scheme_gains_more_follows_from_the_figures(cycles: tuple[int, ...], words: str) -> None:
    runs = [
        fake.run(scheme, cycles=count) | {"settings": {"llc.size_bytes": size}}
        for (size, scheme), count in zip(
            ((size, scheme) for size in (4 << 20, 8 << 20) for scheme in ("radix4", "fpt")),
            cycles,
            strict=True,
        )
    ]
    response = fake.sample(runs, own=0.0001 if "decided" not in words else 0.08)
    (point,) = explain(response).machines
    assert point.topic == "Settings at 4 KiB pages"
    assert words in point.said
    label, schemes = across.places(response["runs"])[0]
    headers, rows = across.rows(schemes, response["runs"])
    assert label == "4 KiB pages"
    assert headers[1].strip() == "settings"
    assert [row[:2] for row in rows] == [
        [scheme, f"llc.size_bytes={size}"] for scheme in ("radix4", "fpt") for size in ("4MiB", "8MiB")
    ]


def test_a_changed_machine_has_its_settings_in_its_name() -> None:
    run = fake.run() | {"settings": {"llc.size_bytes": 4 << 20, "walker.concurrent": 2}}
    assert machine_label(run) == "skylake-server, llc.size_bytes=4MiB, walker.concurrent=2"


def test_a_file_with_a_shipped_name_says_where_it_is_from(tmp_path: Path) -> None:
    shipped = settings.DATA / "machines" / "zen4.toml"
    copy = tmp_path / "zen4.toml"
    copy.write_text(shipped.read_text())
    assert settings.machine(str(copy))["name"] == "zen4", "the same contents"
    copy.write_text(shipped.read_text().replace("frequency_mhz = 5000", "frequency_mhz = 4000"))
    assert settings.machine(str(copy))["name"] == "zen4 (zen4.toml)"
    copy.write_text(copy.read_text().replace('name = "zen4"', 'name = "mine"'))
    assert settings.machine(str(copy))["name"] == "mine"
    mine = settings.machine(str(copy))
    other = mine | {"frequency_mhz": 3000}
    both = settings.distinct([("a.toml", mine), ("b.toml", other)], "machine", "--machine")
    assert [machine["name"] for machine in both] == ["mine", "mine (b.toml)"]
    with pytest.raises(UsageError, match="two machines are called mine"):
        settings.distinct([("a.toml", mine), ("b.toml", mine)], "machine", "--machine")


def _simulated(flatwalk: Flatwalk, *arguments: str) -> dict[str, Any]:
    result = flatwalk("compare", *SHORT, *arguments, "--json", "-")
    assert result.code == 0, result.err
    return json.loads(result.out)  # type: ignore[no-any-return]


#: What a run has because others were run with it.
_BETWEEN = ("machine_speedup", "speedup_change")


def _alone(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if not key.startswith(_BETWEEN) and key != "settings"}


def test_each_machine_has_the_figures_that_it_has_alone(flatwalk: Flatwalk, tmp_path: Path) -> None:
    """Several in one call, one in a call, and a file with the setting in it, are all the same."""
    together = _simulated(flatwalk, "--machine", "skylake-server,zen4", "--set", "llc.size_bytes=8MiB,32MiB")
    places = [
        (members[0]["machine"], members[0]["settings"]["llc.size_bytes"])
        for members in grouped(together["runs"])
    ]
    assert places[::2] == [
        (machine, size << 20) for machine in ("skylake-server", "zen4") for size in (8, 32)
    ]
    assert places[::2] == places[1::2], "4 KiB and 2 MiB pages"
    alone = _simulated(flatwalk, "--machine", "zen4", "--set", "llc.size_bytes=8MiB")
    here = [
        run
        for run in together["runs"]
        if run["machine"] == "zen4" and run["settings"]["llc.size_bytes"] == 8 << 20
    ]
    assert [_alone(run) for run in here] == [_alone(run) for run in alone["runs"]]
    text = (settings.DATA / "machines" / "zen4.toml").read_text()
    assert text.count("size_bytes = 33554432") == 1
    file = tmp_path / "zen4.toml"
    file.write_text(text.replace("size_bytes = 33554432", "size_bytes = 8388608"))
    from_file = _simulated(flatwalk, "--machine", str(file))
    names = ("machine", "configuration")
    for mine, other in zip(alone["runs"], from_file["runs"], strict=True):
        assert {key: value for key, value in _alone(mine).items() if key not in names} == {
            key: value for key, value in _alone(other).items() if key not in names
        }
        assert other["machine"] == "zen4 (zen4.toml)"
    assert together["runs"][0]["cycles"] != together["runs"][8]["cycles"]


def test_a_mix_takes_one_machine(flatwalk: Flatwalk) -> None:
    mix = ["compare", "--mix", "2*gups:16MiB", "--schemes", "radix4", "--large-pages", "0", "--no-report"]
    result = flatwalk(*mix, "--set", "llc.size_bytes=4MiB,8MiB")
    assert result.code == 2
    assert "a mix runs on one machine" in result.err
    result = flatwalk(*mix, "--set", "llc.size_bytes=4MiB", "--instructions", "200k", "--warmup", "10k")
    assert result.code == 0, result.err
    assert "on skylake-server-4core, llc.size_bytes=4MiB" in result.out


def test_a_walk_takes_settings(flatwalk: Flatwalk) -> None:
    result = flatwalk(
        "walk", "--workload", "gups:16MiB", "--set", "scheme.table.levels=5", "--set", "pwc={kind='none'}"
    )
    assert result.code == 0, result.err
    assert "on skylake-server, scheme.table.levels=5, pwc={kind=none}" in result.out
    assert "A walk reads 5 entries" in result.out
    assert flatwalk("walk", "--set", "llc.ways=8,16").code == 2
