"""`@path`: which words are files, how a file travels, and what is refused."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.errors import UsageError
from specchat.tui.state import attachments
from specchat.tui.state.attachments import Attached, inline, split
from specchat.tui.state.turn import Turn


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("import os\n\nprint(1)\n")
    (tmp_path / "my notes.txt").write_text("hello")
    (tmp_path / "notes.md").write_text("a\r\nb\r\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (tmp_path / "huge.txt").write_bytes(b"x" * (attachments.LARGEST_BYTES + 1))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "moved.md").symlink_to("elsewhere.md")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def test_a_file_goes_behind_the_text_and_can_be_taken_apart_again(folder):
    text = 'compare @src/app.py, @"my notes.txt" and (@notes.md).'
    sent = inline(text, folder)
    assert '<file path="src/app.py" lines="3">\nimport os\n\nprint(1)\n</file>' in sent
    assert split(sent) == (
        text,
        [
            Attached("src/app.py", ("import os", "", "print(1)")),
            Attached("my notes.txt", ("hello",)),
            Attached("notes.md", ("a", "b")),
        ],
    )


def test_a_file_named_twice_is_sent_once(folder):
    assert inline("@notes.md and @notes.md", folder).count("<file") == 1


@pytest.mark.parametrize("text", ["@property def x", "mail me@example.com", "hey @bob!", "a @ b", "@@notes.md", "@"])
def test_what_is_no_file_stays_text(folder, text):
    assert inline(text, folder) == text.replace("@@", "@")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@src/ap.py", "there is no file 'src/ap.py'; did you mean 'src/app.py'"),
        ("see @note.md.", "there is no file 'note.md'; did you mean 'notes.md'"),
        ("@~nobody-here/x", "there is no file"),
        ('@"src"', "@src is a folder"),
        ("@./src.", "@./src is a folder"),
        ("@src/", "@src/ is a folder"),
        ("@/dev/zero", "@/dev/zero is not a regular file"),
        ("see @./pipe!", "@./pipe is not a regular file"),
        ("(@moved.md)", "@moved.md is a link that leads nowhere"),
        ('@"moved.md"', "@moved.md is a link that leads nowhere"),
        ("@/" + "a" * 300, "there is no file"),
        ("@picture.png", "@picture.png is not a text file"),
        ("@huge.txt", "@huge.txt has 1.0 MB; files of up to 1.0 MB can be sent"),
        ('@"absent file"', "@absent file cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused_in_one_line(folder, text, why):
    with pytest.raises(UsageError) as error:
        inline(text, folder)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_the_home_folder_may_be_written_short(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert split(inline("@~/notes.md", folder / "src"))[1] == [Attached("~/notes.md", ("a", "b"))]


def test_an_empty_file_is_a_file(folder):
    (folder / "newline.txt").write_text("\n")
    files = split(inline("@empty.txt and @newline.txt", folder))[1]
    assert files == [Attached("empty.txt", ()), Attached("newline.txt", ("",))]
    assert [file.size for file in files] == ["0 lines", "1 line"]


@given(
    st.lists(st.tuples(st.text("a<>\"'& /.", min_size=1, max_size=8), st.text("ab\n</file>", max_size=40)), max_size=3)
)
def test_no_content_of_a_file_can_end_it_early(files):
    attached = [Attached(path, tuple(text.split("\n")) if text else ()) for path, text in files]
    sent = "\n\n".join(["look", *(attachments._block(file) for file in attached)])
    assert split(sent) == ("look", attached)


@pytest.mark.parametrize(
    "content",
    ["<file>", '<file path="a" lines="3">\nx\n</file>', '<file path="a" lines="1">\nx\n</file> and more', "a\n\nb", ""],
)
def test_text_that_only_looks_like_a_file_is_left_alone(content):
    assert split(content) == (content, [])


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("see @sr", (5, "sr")),
        ("@", (1, "")),
        ('@"my no', (2, "my no")),
        ("(@src/", (2, "src/")),
        ("me@exa", None),
        ("@a b", None),
        ("@@a", None),
    ],
)
def test_the_path_before_the_cursor_is_found(before, found):
    assert attachments.path_being_typed(before) == found


def test_paths_are_completed_folders_with_a_slash_and_hidden_ones_on_request(folder):
    (folder / ".secret").write_text("x")
    assert attachments.completions("n", folder) == ["notes.md"]
    assert attachments.completions("s", folder) == ["src/"]
    assert attachments.completions("src/", folder) == ["src/app.py"]
    assert ".secret" not in attachments.completions("", folder)
    assert attachments.completions(".s", folder) == [".secret"]
    assert attachments.completions("nowhere/x", folder) == []


def test_the_model_reads_a_question_without_the_marks_of_its_files(tmp_path):
    (tmp_path / "notes.txt").write_text("a line")
    (tmp_path / "my list.txt").write_text("eggs")
    said = attachments.inline('What do @notes.txt, @"my list.txt" and @@nobody say? (@notes.txt)', tmp_path)
    read = Turn("user", said).message().content
    question, files = attachments.split(read)
    assert question == "What do notes.txt, my list.txt and @nobody say? (notes.txt)"
    assert [file.path for file in files] == ["notes.txt", "my list.txt"]
    assert Turn("user", said).editable.startswith('What do @notes.txt, @"my list.txt"'), "it is edited as it was typed"
    assert Turn("user", "no file, only @someone").message().content == "no file, only @someone"
