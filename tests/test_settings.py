from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from flatwalk.definitions import champsim, settings
from flatwalk.errors import UsageError

ISSUE_SCHEMES = {
    "radix3",
    "radix4",
    "radix5",
    "fpt-l4l3",
    "fpt-l3l2",
    "fpt-l2l1",
    "fpt",
    "fpt-nonf",
    "radix4+ptp",
    "fpt+ptp",
    "ideal",
}


@pytest.mark.parametrize("name", settings.names("scheme"))
def test_every_scheme_is_valid_and_named_as_its_file(name: str) -> None:
    assert settings.scheme(name)["name"] == name


@pytest.mark.parametrize("name", settings.names("machine"))
def test_every_machine_is_valid_and_named_as_its_file(name: str) -> None:
    assert settings.machine(name)["name"] == name


def test_what_is_shipped() -> None:
    assert set(settings.names("scheme")) >= ISSUE_SCHEMES
    assert set(settings.DEFAULT_SCHEMES) == ISSUE_SCHEMES
    assert settings.DEFAULT_SCHEMES[0] == "radix4", "the baseline is what machines do today"
    shipped = {
        "skylake-server",
        "skylake-server-4core",
        "mobile",
        "compendia",
        "emt",
        "zen4",
        "golden-cove",
        "xeon-w-2195",
        "itanium2",
    }
    assert set(settings.names("machine")) == shipped
    assert [name for name in sorted(shipped) if not settings.is_timed(settings.machine(name))] == [
        "compendia"
    ]


@pytest.mark.parametrize("name", settings.names("machine"))
def test_every_figure_of_a_machine_has_its_source_beside_it(name: str) -> None:
    lines = (settings.DATA / "machines" / f"{name}.toml").read_text().splitlines()
    figures = [line for line in lines if re.match(r"\w+ = [\d{]", line)]
    assert len(figures) >= 19
    assert [line for line in figures if not re.search(r" # \S", line)] == []


@pytest.mark.parametrize("name", settings.names("experiment"))
def test_whatever_an_experiment_sets_of_a_machine_has_its_reason_beside_it(name: str) -> None:
    """What a claim's machine has in place of its file's figure, so that none is changed to fit."""
    lines = (settings.DATA / "experiments" / f"{name}.toml").read_text().splitlines()
    changed = [line for line in lines if re.match(r"(set\.|\[series\.set|set = )", line)]
    assert [line for line in changed if not re.search(r"[^{[(] # \S", line)] == []


def test_a_figure_changed_to_fit_is_refused() -> None:
    """A line as someone would add it to make a claim hold."""
    for line in ("set.walker.concurrent = 3", 'set.pwc = { kind = "none" }'):
        assert re.match(r"(set\.|\[series\.set|set = )", line)
        assert not re.search(r"[^{[(] # \S", line)


def test_the_server_with_four_cores_is_the_server_but_for_what_cores_share() -> None:
    single, multiple = settings.machine("skylake-server"), settings.machine("skylake-server-4core")
    assert multiple.pop("multicore") == {"cores": 4, "isolation": "owners"}
    assert multiple["llc"].pop("size_bytes") == 2 * single["llc"].pop("size_bytes")
    for machine in (single, multiple):
        machine["energy"].pop("llc_pj")
        for key in ("name", "title"):
            machine.pop(key)
    assert multiple == single


def _edited(tmp_path: Path, kind: str, name: str, old: str, new: str) -> str:
    text = (settings.DATA / f"{kind}s" / f"{name}.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("window = 224", "windows = 224", ["core.windows", "did you mean window?", "core.window is missing"]),
        ("window = 224", "window = 1000000000000", ["core.window", "1 to 65536", "1000000000000"]),
        ("[walker]", "[wolker]", ["wolker", "did you mean walker?"]),
        ("size_bytes = 262144", "size_bytes = -1", ["l2.size_bytes", "64 to 68719476736", "-1"]),
        ("channels = 4", 'channels = "four"', ["memory.channels", '"four"']),
        ('kind = "ddr4"', 'kind = "ddr"', ["memory.kind", "did you mean ddr4?"]),
        ('kind = "split"', 'kind = "spilt"', ["pwc.kind", "did you mean split?"]),
        ("L5 = 4", "L7 = 4", ["pwc.entries.L7"]),
        ('pages = ["4K", "2M"]', 'pages = ["4k"]', ["tlb.l2[1].pages[1]", "did you mean 4K?"]),
        ("[[tlb.l2]]", "[[tlb.l3]]", ["tlb.l3", "did you mean l"]),
        ("concurrent = 2", "concurrent = true", ["walker.concurrent"]),
        ("cl_ns = 14.16", "", ["memory.cl_ns is missing"]),
        ("rfc_ns = 350.0", "rfc_ns = 7800.0", ["memory.rfc_ns", "less than memory.refi_ns", "7800"]),
        (
            "write_batch = 16",
            "write_batch = 60",
            ["memory.write_batch", "1 to memory.write_queue", "60 and 54"],
        ),
        ("[os]", "[oss]", ["oss", "did you mean os?", "os is missing"]),
        ("[pwc]", "[[pwc]]", ["pwc must be a table: write [pwc]"]),
        ("[[tlb.l2]]", "[tlb.l2]", ["is not valid TOML"]),
    ],
)
def test_a_mistake_in_a_machine_names_file_key_and_remedy(
    tmp_path: Path, old: str, new: str, told: list[str]
) -> None:
    path = _edited(tmp_path, "machine", "skylake-server", old, new)
    with pytest.raises(UsageError) as caught:
        settings.machine(path)
    assert caught.value.where == path
    for words in told:
        assert words in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("scheme", "old", "new", "told"),
    [
        ("fpt", "[table]", "[tabel]", ["did you mean table?", "table is missing"]),
        ("fpt", "[table]", "", ["organisation belongs in the section of the table", "table is missing"]),
        (
            "virt-fpt",
            "[host.table]",
            "[host]",
            ["host.organisation belongs in the section of the table", "`[host.table]`"],
        ),
        ("fpt", "levels = 4", "levels = 6", ["table.levels", "6"]),
        ("virt-fpt", "levels = 4", "levels = 6", ["table.levels", "6"]),
        ("ia64-4", "page_shift", "page_shft", ["table.geometry.page_shft", "did you mean page_shift?"]),
        ("fpt", 'title = "', 'title = 1 # "', ["title"]),
        (
            "fpt",
            'organisation = "flattened"',
            'organisation = "flat"',
            ['table.organisation cannot be "flat"', "did you mean flattened?"],
        ),
        (
            "fpt",
            "no_flatten_threshold",
            "no_flaten_threshold",
            ["table.no_flaten_threshold", "did you mean no_flatten_threshold?"],
        ),
        ("fpt", '"L4L3"', '"L4L1"', ["table.flatten", "L4L1"]),
        ("compendia", "merge_us = 20", "merge_ms = 20", ["table.merge_ms", "did you mean merge_us?"]),
        ("compendia", "merge_us = 20 ", "# ", ["table.merge_us is missing"]),
        (
            "compendia",
            "merge_fraction = 0.125",
            'merge_fraction = "1/8"',
            ["table.merge_fraction", '"1/8"'],
        ),
        ("ecpt", "ways = 3 ", "way = 3 ", ["table.way", "did you mean ways?"]),
        ("ecpt", "[4096, 2048]", '"4096"', ["table.walk_table_entries", "must be a list"]),
        ("ecpt", "grow_occupancy = 0.6 ", "# ", ["table.grow_occupancy is missing"]),
        ("ecpt", '"elastic_cuckoo"', '"elastic_cuckoos"', ["did you mean elastic_cuckoo?"]),
    ],
)
def test_a_mistake_in_a_scheme_names_file_key_and_remedy(
    tmp_path: Path, scheme: str, old: str, new: str, told: list[str]
) -> None:
    path = _edited(tmp_path, "scheme", scheme, old, new)
    with pytest.raises(UsageError) as caught:
        settings.scheme(path)
    for words in told:
        assert words in caught.value.what


@pytest.mark.parametrize("kind", ["scheme", "machine", "mix", "sweep"])
@pytest.mark.parametrize("key", ["name", "title"])
@pytest.mark.parametrize("text", [r"a\nb", r"a\tb", r"\u001b[1m", r"a\u2028b"])
def test_names_and_titles_are_lines(tmp_path: Path, kind: str, key: str, text: str) -> None:
    """They stand in sentences and tables."""
    folder = settings.DATA / {"mix": "mixes"}.get(kind, f"{kind}s")
    shipped = next(iter(sorted(folder.glob("*.toml")))).read_text(encoding="utf-8")
    edited = re.sub(f"^{key} = .*", "", shipped, flags=re.MULTILINE)
    path = tmp_path / "mine.toml"
    path.write_text(f'{key} = "{text}"\n{edited}', encoding="utf-8")
    with pytest.raises(UsageError, match=f"not a valid {kind}: {key} must be one line"):
        settings.read(path, kind)


@pytest.mark.parametrize(
    ("kind", "line", "words"),
    [
        ("sweep", "name = 2020-01-01", "name must be a text: write 2020-01-01 in quotes"),
        (
            "machine",
            "title = 2020-01-01T07:32:00",
            "title must be a text: write 2020-01-01T07:32:00 in quotes",
        ),
        ("scheme", "source = 07:32:00", "source must be a text: write 07:32:00 in quotes"),
        ("sweep", "derive = {a = [[2020-01-01]]}", "derive.a[1][1] must be a text"),
        ("machine", "frequency_mhz = 2020-01-01", "frequency_mhz must be a whole number"),
        ("scheme", "sources = 2020-01-01", "sources is not a known key; did you mean source?"),
    ],
)
def test_dates_and_times_are_no_texts(tmp_path: Path, kind: str, line: str, words: str) -> None:
    shipped = next(iter(sorted((settings.DATA / f"{kind}s").glob("*.toml")))).read_text(encoding="utf-8")
    key = line.partition(" = ")[0]
    path = tmp_path / "mine.toml"
    edited = re.sub(rf"^(\[)?{key}\b.*", "", shipped, flags=re.MULTILINE)
    path.write_text(f"{line}\n{edited}", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        settings.read(path, kind)
    assert words in caught.value.what
    assert caught.value.what.count(key) == words.count(key)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no scheme 'fptt'") as caught:
        settings.scheme("fptt")
    assert "did you mean fpt?" in str(caught.value)
    with pytest.raises(UsageError) as caught:
        settings.machine("skylake")
    assert "did you mean skylake-server?" in str(caught.value)


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_what_is_no_toml_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"is not valid TOML|is not UTF-8"):
        settings.machine(str(path))


def test_a_device_without_end_is_no_file_of_settings() -> None:
    for read in (settings.machine, lambda path: champsim.load(Path(path))):
        with pytest.raises(UsageError, match="this is too long to be a") as caught:
            read("/dev/zero")
        assert caught.value.where == "/dev/zero"


def test_a_byte_order_mark_and_a_pipe_are_read(tmp_path: Path) -> None:
    text = (settings.DATA / "machines" / "zen4.toml").read_bytes()
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + text)
    assert settings.machine(str(path)) == settings.machine("zen4")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(text,))
    writer.start()
    assert settings.read(fifo, "machine") == settings.machine("zen4")
    writer.join()


def test_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        settings.scheme(str(tmp_path / "none.toml"))
    assert "none.toml" in (caught.value.where or "")


def test_a_host_takes_what_hosts_have_of_a_scheme() -> None:
    pair = settings.guest("radix4/direct-segment")
    assert pair["host"] == {"table": {"organisation": "radix", "levels": 4}, "direct_segment": {}}
    assert "direct_segment" not in pair
    own = settings.scheme("fpt+ptp")
    both = settings.guest("fpt+ptp/fpt+ptp")
    assert both["host"] == {"table": own["table"]}
    assert both["page_table_priority"] == own["page_table_priority"]


@pytest.mark.parametrize(
    "pair",
    [
        *("radix4/asap", "radix4/pom-tlb", "fpt/fpt+ptp"),
        *("radix4/ideal", "fpt/radix4+recursive", "radix4/fpt+recursive", "radix4/virt-shadow"),
    ],
)
def test_a_host_refuses_what_only_a_guests_scheme_has(pair: str) -> None:
    with pytest.raises(UsageError, match="a host has no") as error:
        settings.guest(pair)
    assert pair.split("/")[1] in str(error.value)


def test_a_host_may_say_what_its_guest_says_or_what_holds_anyway(tmp_path: Path) -> None:
    free = settings.guest("ideal/ideal")
    assert (free["translation"], free["host"]) == ("free", {"table": settings.scheme("ideal")["table"]})
    path = tmp_path / "mine.toml"
    table = '[table]\norganisation = "radix"\nlevels = 4\n'
    words = "".join(f'{key} = "mine"\n' for key in ("name", "title", "description", "source"))
    path.write_text(f'{words}translation = "walked"\nshadow = false\nrecorded = false\n{table}')
    assert settings.guest(f"fpt/{path}")["host"] == {"table": settings.scheme("radix4")["table"]}
    path.write_text(f"{words}recursive_index = 300\n{table}")
    with pytest.raises(UsageError, match="mine cannot be a host's scheme: a host has no key recursive_index"):
        settings.guest(f"radix4+recursive/{path}")


def test_only_a_guests_table_is_recursive() -> None:
    with pytest.raises(UsageError, match="a host has no key recursive_index") as error:
        settings.guest("radix4+recursive/radix4+recursive")
    assert error.value.remedy == "name it as the guest's alone: radix4+recursive/radix4"


def test_a_shadow_table_has_no_host_to_be() -> None:
    with pytest.raises(UsageError) as error:
        settings.guest("radix4/virt-shadow")
    assert "name virt-shadow alone" in str(error.value)


def test_a_host_has_x86_64s_geometry() -> None:
    with pytest.raises(UsageError, match="ia64-3 cannot be a host's scheme"):
        settings.guest("radix4/ia64-3")


def test_a_pair_is_two_names_or_paths(tmp_path: Path) -> None:
    (tmp_path / "a.toml").mkdir()
    (tmp_path / "a.toml" / "b.toml").touch()
    for text, members in (
        ("radix4/fpt", ("radix4", "fpt")),
        ("./mine.toml/radix4", ("./mine.toml", "radix4")),
        ("/d/mine.toml/radix4", ("/d/mine.toml", "radix4")),
        ("radix4/d/mine.toml", ("radix4", "d/mine.toml")),
        ("d/a.toml//e/b.toml", ("d/a.toml", "/e/b.toml")),
        ("own.py:Own/radix4", ("own.py:Own", "radix4")),
        ("/d/own.py/e/own.py:Own", ("/d/own.py", "e/own.py:Own")),
        ("radix4/d/own.py:Own", ("radix4", "d/own.py:Own")),
        ("own.py:Own", None),
        ("d/own.py", None),
        ("radix4", None),
        ("d/mine.toml", None),
        ("/d/mine.toml", None),
        ("a.toml/b.toml", None),
        ("radix4/", None),
        ("/fpt", None),
    ):
        assert settings.pair_of(text, tmp_path) == members, text


def test_what_toml_cannot_say_is_reported(tmp_path: Path) -> None:
    for number, text in enumerate(("width = " + "9" * 5000, "width = " + "[" * 3000)):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        with pytest.raises(UsageError) as caught:
            settings.read(file, "machine")
        assert caught.value.where == str(file)
