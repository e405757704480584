"""Files: records by type hints, writing whole or not at all."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from ipusim import files
from ipusim.errors import DataError, StudyError
from ipusim.runtime.options.spec import OPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size: int
    name: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    key: str
    count: int
    share: float = 0.5
    done: bool = False
    kind: Literal["a", "b"] = "a"
    words: tuple[str, ...] = ()
    limit: int | None = None
    parts: tuple[Inner, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setenv(files.DATA_DIR_VARIABLE, str(tmp_path))

    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write


def test_lines_become_records_by_their_type_hints(written):
    text = "key,count,share,done,kind,words,limit,else\none,3,0.25,true,b,x y,7,z\ntwo,4,,,,,,\n"
    one, two = files.read(Record, written("a.csv", text))
    assert one == Record(
        key="one", count=3, share=0.25, done=True, kind="b", words=("x", "y"), limit=7
    )
    assert two == Record(key="two", count=4)


def test_tables_become_records_with_records_in_them(written):
    text = """
    [one]
    count = 3
    share = 1
    parts = [{ size = 2 }]
    options = { a = [1] }
    [two]
    count = 1
    """
    one, two = files.read(Record, written("a.toml", text))
    assert one.parts == (Inner(size=2),)
    assert (one.share, type(one.share)) == (1.0, float)
    assert one.options == {"a": [1]}
    assert two.key == "two"
    nested = files.read(Record, written("b.toml", "[in.three]\ncount = 3\n"), table="in")
    assert [record.key for record in nested] == ["three"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "key,share\none,1\n", "'count' of 'one' in a.csv is missing"),
        ("b.csv", "key,count\none,\n", "'count' of 'one' in b.csv is missing"),
        ("c.csv", "key,count\none,1.5\n", "'count' of 'one' in c.csv is '1.5': use a whole number"),
        ("d.csv", "key,count,share\none,1,much\n", "'much': use a number"),
        ("e.csv", "key,count,done\none,1,yes\n", "'yes': use true or false"),
        ("f.csv", "key,count,kind\none,1,c\n", "'c': use one of a, b"),
        ("g.toml", "[one]\ncount = true\n", "True: use a whole number"),
        (
            "i.toml",
            "[one]\ncount = 1\nsize = 2\n",
            "'size' of 'one' in i.toml is unknown: did you mean 'share'",
        ),
        ("j.toml", "[one]\ncount = 1\nparts = [{ name = 'x' }]\n", "'size' of 'one'.*missing"),
        ("k.toml", "[one]\ncount = 1\noptions = 5\n", "5: use a table"),
    ],
)
def test_what_is_wrong_with_a_record_is_one_sentence(written, name, text, says):
    with pytest.raises(DataError, match=says) as caught:
        files.read(Record, written(name, text))
    assert "\n" not in str(caught.value)


def test_a_field_may_say_itself_how_it_is_read(written):
    @dataclass
    class Timed:
        key: str
        tiles: Annotated[Any, OPTIONS["io_tiles"].check] = None

    file = written("a.csv", "key,tiles,note\none,32,\ntwo,,\n")
    assert files.read(Timed, file, strict=True) == (Timed("one", 32), Timed("two"))
    with pytest.raises(DataError, match="'tiles' of 'one' in b.csv is wrong. The option io_tiles"):
        files.read(Timed, written("b.csv", "key,tiles\none,0\n"))
    with pytest.raises(
        DataError, match="'tile' of 'one' in c.csv is unknown: did you mean 'tiles'"
    ):
        files.read(Timed, written("c.csv", "key,tile\none,32\n"), strict=True)


def test_a_key_that_a_file_lacks_is_named(written):
    written("g.toml", "[platform.T4]\nsystem = 'Grace'")
    platform = files.read_tables("g.toml")["platform"]["T4"]
    with pytest.raises(DataError, match=r"'board' of 'T4' in g.toml is missing"):
        platform["board"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(StudyError, match="Cannot write"):
        files.write_text(path / "below", "new")
    assert path.read_text() == "old"
    for no_path in (tmp_path / "null\0", None, 3):
        with pytest.raises(StudyError, match="Cannot write"):
            files.write_text(no_path, "new")
    files.replace_file(path, b"new", sync=True)
    assert [(item.name, item.read_text()) for item in tmp_path.iterdir()] == [("a.txt", "new")]


def test_a_link_is_followed_and_what_is_no_file_stays(tmp_path):
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    link.symlink_to(real)
    for content in ("old", "new"):
        files.write_text(link, content)
        assert (link.is_symlink(), real.read_text()) == (True, content)
    link.unlink()
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, tmp_path):
        with pytest.raises(StudyError, match=r"Cannot write .*\(it is no regular file\): choose"):
            files.write_text(path, "new")
    assert pipe.is_fifo()


def test_a_terminal_is_written_to():
    master, slave = os.openpty()
    files.write_text(Path(os.ttyname(slave)), "trace")
    assert os.read(master, 9) == b"trace"
    os.close(slave)
    os.close(master)
