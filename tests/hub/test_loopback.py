"""The real huggingface_hub client against the Hub of `loopback.py`."""

import warnings

import pytest
import torch
from huggingface_hub import CommitOperationAdd, hf_hub_download, list_repo_files, snapshot_download
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    HfHubHTTPError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session
from transformers import AutoModelForSeq2SeqLM, MarianMTModel

from loopback import READER_TOKEN, TOKEN, WITHOUT_WAITING, LoopbackHub, run_python
from tiny_models import plain_config
from tiny_translation import tiny_tokenizer

REPO = "user/model"
CARD = "---\nlicense: mit\nlibrary_name: transformers\npipeline_tag: translation\ntags:\n- capsule\n---\n# A model\n"
# a weight file is LFS by its name, notes.txt by nothing
WEIGHTS = bytes(range(256)) * 64
LFS_ROUTE = ("POST", f"/{REPO}.git/info/lfs/objects/batch")


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def api(hub, monkeypatch, tmp_path):
    return hub.attach(monkeypatch, tmp_path)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "translations").mkdir(parents=True)
    (folder / "README.md").write_text(CARD)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "translations" / "test.de").write_text("ein hund rennt .\n")
    return folder


@pytest.fixture
def published(hub, api, folder):
    api.create_repo(REPO)
    api.upload_folder(repo_id=REPO, folder_path=folder, commit_message="First")
    return hub.repos[REPO]


def uploads(hub) -> int:
    return sum(method == "PUT" for method, _ in hub.requests)


def test_a_folder_becomes_one_commit(hub, published):
    first, commit = published.commits
    assert (first.message, set(first.files)) == ("initial commit", {".gitattributes"})
    assert commit.message == "First" and published.head is commit and len(commit.sha) == 40
    assert commit.files == {
        ".gitattributes": first.files[".gitattributes"],
        "README.md": CARD.encode(),
        "model.safetensors": WEIGHTS,
        "translations/test.de": b"ein hund rennt .\n",
    }
    assert commit.lfs == {"model.safetensors"} and uploads(hub) == 1


def test_a_large_file_is_lfs_whatever_its_name(api, hub):
    api.create_repo(REPO)
    content = b"\0" * (10 * 1024 * 1024 + 1)
    api.upload_file(path_or_fileobj=content, path_in_repo="train.txt", repo_id=REPO)
    assert hub.repos[REPO].head.lfs == {"train.txt"} and hub.repos[REPO].head.files["train.txt"] == content


def test_what_has_not_changed_is_not_sent_again(hub, api, folder, published):
    api.upload_folder(repo_id=REPO, folder_path=folder)
    assert len(published.commits) == 2 and uploads(hub) == 1
    (folder / "translations" / "test.de").write_text("ein hund .\n")
    api.upload_folder(repo_id=REPO, folder_path=folder, delete_patterns="*.md", ignore_patterns="*.md")
    assert set(published.head.files) == {".gitattributes", "model.safetensors", "translations/test.de"}
    # a commit is a snapshot: the one before is what it was
    assert published.commits[1].files["README.md"] == CARD.encode() and uploads(hub) == 1


@pytest.mark.parametrize("name", ["README.md", "model.safetensors", "translations/test.de"])
def test_download_by_name(published, name):
    with open(hf_hub_download(REPO, name), "rb") as file:
        assert file.read() == published.head.files[name]


def test_download_by_revision(api, folder, published):
    old = published.head.sha
    api.create_tag(REPO, tag="v1.0")
    api.create_branch(REPO, branch="work/next", revision="v1.0")
    (folder / "model.safetensors").write_bytes(WEIGHTS[::-1])
    api.upload_folder(repo_id=REPO, folder_path=folder)

    def weights(revision):
        with open(hf_hub_download(REPO, "model.safetensors", revision=revision), "rb") as file:
            return file.read()

    for revision in ("v1.0", old, "work/next"):
        assert weights(revision) == WEIGHTS
    assert weights(None) == weights("main") == weights(published.head.sha) == WEIGHTS[::-1]
    references = api.list_repo_refs(REPO)
    assert {tag.name: tag.target_commit for tag in references.tags} == {"v1.0": old}
    assert {ref.name: ref.target_commit for ref in references.branches} == {
        "main": published.head.sha,
        "work/next": old,
    }
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag(REPO, tag="v1.0")


def test_an_interrupted_download_goes_on_where_it_stopped(api, published):
    metadata = api.get_hf_file_metadata(url=f"{api.endpoint}/{REPO}/resolve/main/model.safetensors")
    rest = get_session().get(metadata.location, headers={"Range": "bytes=1000-"})
    assert (rest.status_code, rest.content) == (206, WEIGHTS[1000:])
    assert rest.headers["Content-Range"] == f"bytes 1000-{len(WEIGHTS) - 1}/{len(WEIGHTS)}"


def test_listing(api, tmp_path, published):
    files = [".gitattributes", "README.md", "model.safetensors", "translations/test.de"]
    assert sorted(list_repo_files(REPO)) == files
    assert [entry.path for entry in api.list_repo_tree(REPO)] == [*files[:3], "translations"]
    assert [entry.path for entry in api.list_repo_tree(REPO, "translations")] == [files[3]]
    readme, weights = api.get_paths_info(REPO, ["README.md", "model.safetensors", "absent"])
    assert (readme.size, readme.lfs) == (len(CARD), None) and weights.lfs.size == weights.size == len(WEIGHTS)

    info = api.model_info(REPO, files_metadata=True)
    assert (info.sha, info.private, info.pipeline_tag) == (published.head.sha, False, "translation")
    assert info.card_data.license == "mit" and info.library_name == "transformers"
    assert {sibling.rfilename: sibling.size for sibling in info.siblings}["model.safetensors"] == len(WEIGHTS)
    snapshot = snapshot_download(REPO, local_dir=tmp_path / "snapshot")
    assert (tmp_path / "snapshot" / "translations" / "test.de").read_text() == "ein hund rennt .\n", snapshot


def test_what_is_not_there(api, published):
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("user/other")
    with pytest.raises(RepositoryNotFoundError):
        hf_hub_download("gpt2", "config.json")
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download(REPO, "README.md", revision="v9")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(REPO, "config.json")
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree(REPO, "absent"))
    assert api.repo_exists(REPO) and not api.repo_exists("user/other")
    assert api.file_exists(REPO, "README.md") and not api.file_exists(REPO, "config.json")


def test_accounts(api, hub, folder):
    assert api.whoami()["name"] == "user"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        api.whoami(token="hf_unknown")
    api.create_repo(REPO)
    assert api.create_repo(REPO, exist_ok=True).repo_id == REPO
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(REPO)
    # False: no token at all
    for token, refused in ((False, "401"), ("hf_unknown", "401"), (READER_TOKEN, "403")):
        with pytest.raises(HfHubHTTPError, match=refused):
            api.create_repo("user/second", token=token)
        with pytest.raises(HfHubHTTPError, match=refused):
            api.upload_folder(repo_id=REPO, folder_path=folder, token=token)
        with pytest.raises(HfHubHTTPError, match=refused):
            api.delete_repo(REPO, token=token)
    assert list(hub.repos) == [REPO] and len(hub.repos[REPO].commits) == 1 and not hub.objects
    api.delete_repo(REPO)
    assert not hub.repos


@pytest.mark.parametrize("token", [False, READER_TOKEN], ids=["no token", "another account"])
def test_a_private_repository_is_not_there_for_others(api, folder, token):
    api.create_repo(REPO, private=True)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    assert api.model_info(REPO).private
    with pytest.raises(RepositoryNotFoundError):
        api.model_info(REPO, token=token)
    for name in ("README.md", "model.safetensors"):
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download(REPO, name, token=token)
        hf_hub_download(REPO, name, token=TOKEN)
    with pytest.raises(RepositoryNotFoundError):
        api.auth_check(REPO, token=token)
    api.auth_check(REPO, write=True)


def test_a_card_is_checked(api, hub, folder):
    api.create_repo(REPO)
    for broken in ("---\nlicense: [mit\n---\n", "---\njust words\n---\n"):
        (folder / "README.md").write_text(broken)
        with pytest.raises(ValueError, match=r"Invalid metadata in README\.md"):
            api.upload_folder(repo_id=REPO, folder_path=folder)
    with pytest.warns(UserWarning, match="empty or missing yaml metadata"):
        api._validate_yaml("# no front matter\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        api._validate_yaml(CARD)
    assert len(hub.repos[REPO].commits) == 1 and LFS_ROUTE not in hub.requests


def test_a_commit_needs_the_parent_it_was_made_for(api, published):
    operation = CommitOperationAdd("notes.txt", b"notes")
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit(REPO, [operation], commit_message="late", parent_commit=published.commits[0].sha)
    api.create_commit(REPO, [operation], commit_message="in time", parent_commit=published.head.sha)
    assert published.head.message == "in time"
    with pytest.raises(RevisionNotFoundError):
        api.upload_file(path_or_fileobj=b"", path_in_repo="a.txt", repo_id=REPO, revision="absent")


def test_a_commit_needs_the_content_of_its_lfs_files(hub, api, published):
    operation = CommitOperationAdd("more.safetensors", b"never sent")
    operation._upload_mode, operation._is_uploaded = "lfs", True
    with pytest.raises(BadRequestError, match=r"more\.safetensors was not uploaded"):
        api.create_commit(REPO, [operation], commit_message="empty")
    assert len(published.commits) == 2


@pytest.mark.parametrize("route", ["lfs", "commit"])
def test_a_cut_connection_leaves_no_commit_and_the_next_try_succeeds(hub, api, folder, route):
    api.create_repo(REPO)
    hub.cut_off(route)
    with pytest.raises((RuntimeError, HTTPError)) as raised:
        api.upload_folder(repo_id=REPO, folder_path=folder)
    # the connection failed: no answer came, not even a refusal
    failure = raised.value.__cause__ if route == "lfs" else raised.value
    assert isinstance(failure, HTTPError) and not isinstance(failure, HfHubHTTPError)
    assert [commit.message for commit in hub.repos[REPO].commits] == ["initial commit"]
    # the client repeats an upload by itself, a commit never: it might have been made
    sent, commits = uploads(hub), sum("/commit/" in path for _, path in hub.requests)
    assert (sent > 1 and commits == 0) if route == "lfs" else (sent, commits) == (1, 1)

    hub.cut_off(route, times=0)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    assert hub.repos[REPO].head.files["model.safetensors"] == WEIGHTS and len(hub.repos[REPO].commits) == 2
    # what had arrived before the commit failed is not sent again
    assert uploads(hub) - sent == (1 if route == "lfs" else 0)


def test_an_upload_that_is_cut_once_is_repeated_by_the_client(hub, api, folder):
    api.create_repo(REPO)
    hub.cut_off("lfs", times=1)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    assert hub.repos[REPO].head.files["model.safetensors"] == WEIGHTS and uploads(hub) == 2
    with pytest.raises(ValueError, match="route: 'commits'"):
        hub.cut_off("commits")


@pytest.fixture
def model(tmp_path, api):
    """The folder of a tiny model with its tokenizer, also published in a private repository."""
    torch.manual_seed(5)
    folder = tmp_path / "model"
    tiny_tokenizer().save_pretrained(folder)
    MarianMTModel(plain_config()).save_pretrained(folder)
    api.create_repo(REPO, private=True)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    return folder


def test_transformers_loads_from_it_and_pushes_to_it(hub, model):
    loaded = AutoModelForSeq2SeqLM.from_pretrained(REPO)
    torch.testing.assert_close(loaded.state_dict(), MarianMTModel.from_pretrained(model).state_dict(), rtol=0, atol=0)
    loaded.push_to_hub("user/pushed")
    files = hub.repos["user/pushed"].head.files
    assert files["model.safetensors"] == (model / "model.safetensors").read_bytes()


def test_a_fresh_process_loads_from_it(hub, model, tmp_path):
    code = f"""
from transformers import AutoConfig, AutoTokenizer
print(AutoConfig.from_pretrained("{REPO}").d_model)
print(AutoTokenizer.from_pretrained("{REPO}")("a dog runs .").input_ids)
"""
    printed = run_python(WITHOUT_WAITING + code, hub.environment(tmp_path)).splitlines()
    assert printed == [str(plain_config().d_model), str(tiny_tokenizer()("a dog runs .").input_ids)]
    with pytest.raises(AssertionError, match="exit status 3\\nout\\n\\nerr"):
        run_python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", hub.environment(tmp_path))
