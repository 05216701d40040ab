"""A folder that takes its place in whole or not at all."""

import pytest

from hf_capsule_mt.files import only_writer, whole_folder


def test_takes_the_place_of_the_one_before(tmp_path):
    path = tmp_path / "hub"
    for content in ("one", "two"):
        with whole_folder(path) as folder:
            (folder / content).write_text(content)
            assert content == "one" or [p.name for p in path.iterdir()] == ["one"]
        assert [p.name for p in path.iterdir()] == [content]
    assert {p.name for p in tmp_path.iterdir()} == {"hub", ".hub.lock"}


def test_an_error_leaves_what_there_was(tmp_path):
    path = tmp_path / "hub"
    for before in (None, "one"):
        if before:
            path.mkdir()
            (path / before).touch()
        with pytest.raises(KeyboardInterrupt), whole_folder(path) as folder:
            (folder / "two").touch()
            raise KeyboardInterrupt
        assert [p.name for p in path.iterdir()] == [before] if before else not path.exists()
        assert not (tmp_path / ".hub.partial").exists()


def test_what_a_kill_left_is_put_back_or_removed(tmp_path):
    path = tmp_path / "hub"
    for name in (".hub.old", ".hub.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mark").write_text(name)
    with pytest.raises(OSError, match="full"), whole_folder(path):
        raise OSError("full")
    assert (path / "mark").read_text() == ".hub.old"
    assert {p.name for p in tmp_path.iterdir()} == {"hub", ".hub.lock"}


def test_a_link_in_its_way_is_removed_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / ".hub.partial").symlink_to(tmp_path / "mine")
    with whole_folder(tmp_path / "hub") as folder:
        (folder / "x").touch()
    assert not list((tmp_path / "mine").iterdir()) and (tmp_path / "hub" / "x").is_file()


def test_one_writer(tmp_path):
    with (
        only_writer(tmp_path / "hub"),
        pytest.raises(ValueError, match="is being written by another process"),
        whole_folder(tmp_path / "hub"),
    ):
        raise AssertionError
