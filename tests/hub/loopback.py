"""A small Hugging Face Hub on 127.0.0.1, for tests: the real `huggingface_hub` client talks to it, nothing is mocked.

    with LoopbackHub() as hub:
        api = hub.attach(monkeypatch, tmp_path)  # this process's huggingface_hub now means `hub`
        run_python(code, hub.environment(tmp_path))  # or a fresh process

It serves the routes of model repositories that publishing and loading use, those of Spaces that publishing uses (they
are "spaces/user/name" here), and those of data sets that reading one uses; `add_dataset` makes one. What it copies
from the real Hub because tests depend on it: a new repository has one commit with .gitattributes; the server decides
which files are LFS; LFS objects live on another host, outlive a commit that failed, and are not sent twice; a private
repository does not exist for those who may not see it; a card whose front matter is not valid is refused.
Not served: Xet, writing data sets, running Spaces, pull requests.
"""

import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from huggingface_hub import HfApi, close_session, constants, hf_api
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import _http

ROOT = Path(__file__).resolve().parents[2]
USER, TOKEN = "user", "hf_loopback"
# a second account, which may write in its own namespace only
READER, READER_TOKEN = "reader", "hf_loopback_reader"
LFS_SIZE = 10 * 1024 * 1024
LFS_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.h5", "*.png", "*.jpg", "*tfevents*")
GIT_ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LFS_PATTERNS).encode()

# First lines of a fresh process: the client repeats a failed request after 1, 2, 4, ... seconds; so it does at once.
WITHOUT_WAITING = """
import types
from huggingface_hub.utils import _http
_http.time = types.SimpleNamespace(sleep=lambda seconds: None)
"""


def run_python(code: str, environment: dict[str, str], timeout: float = 300) -> str:
    """Standard output of `code` in a fresh Python process; AssertionError with its standard error if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    if done.returncode != 0:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Commit:
    """A snapshot of a repository: every file, not only those that changed."""

    sha: str
    message: str
    files: dict[str, bytes]
    # the paths that are LFS files
    lfs: frozenset[str]
    date: str

    def entry(self, path: str) -> dict:
        """The Hub's description of one file: its git hash and, for LFS, the sha256 of the content."""
        content = self.files[path]
        described = {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
        if path in self.lfs:
            sha256 = hashlib.sha256(content).hexdigest()
            described["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
        return described

    def listing(self, folder: str = "", recursive: bool = False) -> list[dict]:
        """Files and folders under `folder` ("" is the root); empty if there is no such folder."""
        prefix = f"{folder}/" if folder else ""
        entries = {}
        for path in sorted(path for path in self.files if path.startswith(prefix)):
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                name = prefix + "/".join(parts[:depth])
                entries[name] = {"type": "directory", "path": name, "size": 0, "oid": git_hash(name.encode())}
            if recursive or len(parts) == 1:
                entries[path] = self.entry(path)
        return list(entries.values())


@dataclass
class Repo:
    """A model repository; `commits` in the order they were made, those of every branch."""

    repo_id: str
    private: bool
    commits: list[Commit] = field(default_factory=list)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> Commit:
        """The newest commit of `main`."""
        return self.find("main")

    def find(self, revision: str) -> Commit:
        """The commit of a branch, a tag, or (the first seven or more digits of) a sha."""
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        for commit in self.commits:
            if commit.sha == sha or (len(sha) >= 7 and commit.sha.startswith(sha)):
                return commit
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def commit(self, branch: str, message: str, files: dict[str, bytes], lfs: set[str]) -> Commit:
        """Add a commit to `branch` and move the branch to it."""
        contents = sorted((path, git_hash(content)) for path, content in files.items())
        sha = hashlib.sha1(repr((self.repo_id, len(self.commits), message, contents)).encode()).hexdigest()
        commit = Commit(sha, message, dict(files), frozenset(lfs & files.keys()), now())
        self.commits.append(commit)
        self.branches[branch] = sha
        return commit


class Refused(Exception):
    """An answer that is an error; `code` is what the client tells its exceptions apart by (X-Error-Code)."""

    def __init__(self, status: int, message: str, code: str = "", headers: dict = MappingProxyType({}), **body):
        super().__init__(message)
        self.status, self.body = status, {"error": message, **body}
        # a header is one line of ASCII
        line = " ".join(message.split()).encode("ascii", "replace").decode()
        self.headers = {"X-Error-Message": line, **headers}
        if code:
            self.headers["X-Error-Code"] = code


@dataclass
class Request:
    """What the routes need of a request; `query` has the last value of each name."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    # the account whose token came with it
    user: str | None

    def json(self) -> dict:
        return json.loads(self.body)


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def front_matter(card: str) -> tuple[dict, str]:
    """Metadata of a model card and what is wrong with it ("" if nothing)."""
    found = REGEX_YAML_BLOCK.match(card)
    try:
        metadata = yaml.safe_load(found[2]) if found else {}
    except yaml.YAMLError as error:
        return {}, str(error)
    return (metadata, "") if isinstance(metadata, dict) else ({}, "the metadata is not a mapping")


# method, pattern of the path, method of LoopbackHub, which gets the pattern's groups as arguments
MODEL = "/api/models/([^/]+/[^/]+)"
SPACE = "/api/(spaces/[^/]+/[^/]+)"
DATASET = "/api/datasets/([^/]+/[^/]+)"
ROUTES = [
    ("GET", "/api/whoami-v2", "whoami"),
    ("POST", "/api/validate-yaml", "validate_yaml"),
    ("POST", "/api/repos/create", "create_repo"),
    ("DELETE", "/api/repos/delete", "delete_repo"),
    ("GET", MODEL, "model_info"),
    ("GET", f"{MODEL}/revision/([^/]+)", "model_info"),
    ("GET", f"{MODEL}/auth-check(/write)?", "check_access"),
    ("GET", f"{MODEL}/refs", "list_refs"),
    ("GET", f"{MODEL}/tree/([^/]+)(?:/(.+))?", "list_tree"),
    ("POST", f"{MODEL}/paths-info/([^/]+)", "describe_paths"),
    ("GET", f"{SPACE}/refs", "list_refs"),
    ("GET", f"{SPACE}/tree/([^/]+)(?:/(.+))?", "list_tree"),
    ("GET", SPACE, "model_info"),
    ("GET", f"{SPACE}/revision/([^/]+)", "model_info"),
    ("POST", f"{SPACE}/preupload/([^/]+)", "preupload"),
    ("POST", f"{SPACE}/commit/([^/]+)", "commit"),
    ("GET", DATASET, "model_info"),
    ("GET", f"{DATASET}/revision/([^/]+)", "model_info"),
    ("GET", f"{DATASET}/tree/([^/]+)(?:/(.+))?", "list_tree"),
    ("POST", f"{DATASET}/paths-info/([^/]+)", "describe_paths"),
    ("POST", f"{MODEL}/(tag|branch)/([^/]+)", "create_reference"),
    ("POST", f"{MODEL}/preupload/([^/]+)", "preupload"),
    ("POST", f"{MODEL}/commit/([^/]+)", "commit"),
    ("POST", "/([^/]+/[^/]+).git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT", "/lfs/([0-9a-f]{64})", "put_object"),
    ("GET", "/lfs/([0-9a-f]{64})", "get_object"),
    ("GET", "/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
]


class LoopbackHub:
    """The Hub; a context manager that serves while it is open.

    repos: repository by "user/name". requests: (method, path) of every request so far. endpoint: its address.
    objects: content of LFS objects by sha256. tokens: account name by token.
    """

    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.requests: list[tuple[str, str]] = []
        self.objects: dict[str, bytes] = {}
        self.tokens = {TOKEN: USER, READER_TOKEN: READER}
        self._cuts: dict[str, float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "LoopbackHub":
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        # to the client another host, as the real storage of LFS objects is
        self.storage = f"http://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self._server.shutdown()
        self._server.server_close()
        # the client's pool keeps connections open, and the threads behind them would go on answering
        close_session()

    def environment(self, tmp_path: Path) -> dict[str, str]:
        """All environment variables of a fresh process that is logged in to this Hub, caches under `tmp_path`."""
        ours = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(ours)}
        kept = {name: value for name, value in kept.items() if not name.upper().endswith("_PROXY")}
        return {
            **kept,
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "hf_home"),
            "HF_MODULES_CACHE": str(tmp_path / "hf_home" / "modules"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def attach(self, monkeypatch, tmp_path: Path, token: str | None = TOKEN) -> HfApi:
        """Point this process's huggingface_hub at this Hub until the test ends; returns an HfApi.

        Also undoes HF_HUB_OFFLINE, turns Xet off, moves the cache under `tmp_path` and takes the waiting out of the
        client's repetitions. Code from the Hub (trust_remote_code) is cached elsewhere: load it in a fresh process.
        """
        close_session()
        for name, value in {
            "ENDPOINT": self.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "hub_cache"),
            "HF_TOKEN_PATH": str(tmp_path / "no_token"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        # two HfApi objects made with the old endpoint: the one behind huggingface_hub's functions, and transformers'
        monkeypatch.setattr(hf_api.api, "endpoint", self.endpoint)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        return HfApi(token=token)

    def add_dataset(self, repo_id: str, files: dict[str, bytes], branch: str = "main") -> None:
        """Put a data set there, one commit on one branch."""
        repo = Repo(repo_id, private=False)
        repo.commit("main", "initial commit", files if branch == "main" else {}, set())
        if branch != "main":
            repo.commit(branch, "converted", files, set())
        self.repos[repo_id] = repo

    def cut_off(self, route: str, times: float = float("inf")) -> None:
        """Cut the connection in the middle of the next `times` request bodies (for ever by default; 0 ends it).

        route: "lfs", the upload of an LFS object, or "commit", the request that makes a commit.
        """
        if route not in ("lfs", "commit"):
            raise ValueError(f"route: {route!r} is not one of 'lfs', 'commit'")
        self._cuts[route] = times

    def cuts(self, method: str, path: str) -> bool:
        """Whether this request is to be cut; counts it."""
        lfs = method == "PUT" and path.startswith("/lfs/")
        route = "lfs" if lfs else "commit" if re.fullmatch(f"({MODEL}|{SPACE})/commit/[^/]+", path) else None
        with self._lock:
            if self._cuts.get(route, 0) <= 0:
                return False
            self._cuts[route] -= 1
            return True

    def answer(self, request: Request) -> tuple[int, dict, bytes]:
        """Status, headers and body for a request."""
        method = "GET" if request.method == "HEAD" else request.method
        try:
            for route_method, pattern, name in ROUTES:
                found = re.fullmatch(pattern, request.path)
                if route_method == method and found:
                    with self._lock:
                        arguments = (group and unquote(group) for group in found.groups())
                        answer = getattr(self, name)(request, *arguments)
                    return answer if isinstance(answer, tuple) else (200, {}, json.dumps(answer, default=str).encode())
            code = "RepoNotFound" if "/resolve/" in request.path or request.path.startswith("/api/models/") else ""
            raise Refused(404, f"nothing here for {request.method} {request.path}", code)
        except Refused as refused:
            return refused.status, refused.headers, json.dumps(refused.body).encode()

    def repo(self, request: Request, repo_id: str, write: bool = False) -> Repo:
        """The repository, if it is there for the sender of the request."""
        repo = self.repos.get(repo_id)
        owner = repo_id.removeprefix("spaces/").split("/")[0]
        if repo is None or (repo.private and request.user != owner):
            # the real Hub answers 401 to those without a token, so that they log in
            raise Refused(404 if request.user else 401, "Repository not found", "RepoNotFound")
        if write:
            self.check_writer(request, owner, "RepoNotFound")
        return repo

    def check_writer(self, request: Request, owner: str, code: str = "") -> None:
        if request.user is None:
            raise Refused(401, "Invalid username or password.", code)
        if request.user != owner:
            raise Refused(403, f"You don't have the rights to write under the namespace {owner!r}")

    # accounts and repositories

    def whoami(self, request: Request) -> dict:
        if request.user is None:
            raise Refused(401, "Invalid username or password.")
        token = {"displayName": "loopback", "role": "write"}
        account = {"type": "user", "id": request.user, "name": request.user, "fullname": request.user}
        return {**account, "isPro": False, "orgs": [], "auth": {"type": "access_token", "accessToken": token}}

    def validate_yaml(self, request: Request) -> dict:
        metadata, error = front_matter(request.json()["content"])
        if error:
            raise Refused(400, "Invalid metadata", errors=[{"message": error}], warnings=[])
        empty = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
        return {"errors": [], "warnings": empty}

    def create_repo(self, request: Request) -> dict:
        wanted = request.json()
        owner = wanted.get("organization") or request.user
        self.check_writer(request, owner)
        if wanted.get("type") not in (None, "model", "space"):
            raise Refused(400, "this Hub makes models and Spaces only")
        if wanted.get("type") == "space" and wanted.get("sdk") not in ("gradio", "docker", "static"):
            raise Refused(400, "a Space needs an SDK")
        folder = "spaces/" if wanted.get("type") == "space" else ""
        repo_id = f"{folder}{owner}/{wanted['name']}"
        url = f"{self.endpoint}/{repo_id}"
        if repo_id in self.repos:
            raise Refused(409, "You already created this model repo", url=url)
        repo = Repo(repo_id, private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        repo.commit("main", "initial commit", {".gitattributes": GIT_ATTRIBUTES}, set())
        self.repos[repo_id] = repo
        return {"url": url, "name": repo_id, "id": repo_id}

    def delete_repo(self, request: Request) -> dict:
        wanted = request.json()
        repo = self.repo(request, f"{wanted.get('organization') or request.user}/{wanted['name']}", write=True)
        del self.repos[repo.repo_id]
        return {}

    def check_access(self, request: Request, repo_id: str, write: str | None) -> dict:
        self.repo(request, repo_id, write=write is not None)
        return {}

    # reading

    def model_info(self, request: Request, repo_id: str, revision: str = "main") -> dict:
        repo = self.repo(request, repo_id)
        commit = repo.find(revision)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        if request.query.get("blobs", "").lower() == "true":
            for sibling in siblings:
                entry = commit.entry(sibling["rfilename"])
                sibling |= {"size": entry["size"], "blobId": entry["oid"]}
                if "lfs" in entry:
                    sibling["lfs"] = {**entry["lfs"], "sha256": entry["lfs"]["oid"]}
        card, _ = front_matter(commit.files.get("README.md", b"").decode())
        fields = {name: card[name] for name in ("library_name", "pipeline_tag", "model-index", "tags") if name in card}
        return {
            "id": repo_id,
            "author": repo_id.split("/")[0],
            "sha": commit.sha,
            "private": repo.private,
            "gated": False,
            "createdAt": repo.commits[0].date,
            "lastModified": commit.date,
            **fields,
            "cardData": card,
            "siblings": siblings,
        }

    def list_refs(self, request: Request, repo_id: str) -> dict:
        repo = self.repo(request, repo_id)
        kinds = (("branches", "heads", repo.branches), ("tags", "tags", repo.tags))
        references = {
            kind: [{"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": sha} for name, sha in named.items()]
            for kind, folder, named in kinds
        }
        return {**references, "converts": [], "pullRequests": []}

    def list_tree(self, request: Request, repo_id: str, revision: str, folder: str | None) -> list[dict]:
        commit = self.repo(request, repo_id).find(revision)
        recursive = request.query.get("recursive", "").lower() == "true"
        entries = commit.listing(folder or "", recursive)
        if folder and not entries:
            raise Refused(404, f"{folder} does not exist on {revision!r}", "EntryNotFound")
        return entries

    def describe_paths(self, request: Request, repo_id: str, revision: str) -> list[dict]:
        commit = self.repo(request, repo_id).find(revision)
        entries = {entry["path"]: entry for entry in commit.listing(recursive=True)}
        paths = parse_qs(request.body.decode()).get("paths", [])
        return [entries[path] for path in paths if path in entries]

    def resolve(self, request: Request, repo_id: str, revision: str, path: str) -> tuple:
        """A file: its content or, for LFS, a redirection to the storage; the headers describe it in both cases."""
        commit = self.repo(request, repo_id).find(revision)
        headers = {"X-Repo-Commit": commit.sha}
        if path not in commit.files:
            raise Refused(404, "Entry not found", "EntryNotFound", headers)
        entry = commit.entry(path)
        if "lfs" not in entry:
            return 200, {**headers, "ETag": f'"{entry["oid"]}"'}, commit.files[path]
        sha256 = entry["lfs"]["oid"]
        linked = {"X-Linked-Size": str(entry["size"]), "X-Linked-ETag": f'"{sha256}"', "ETag": f'"{entry["oid"]}"'}
        return 302, {**headers, **linked, "Location": f"{self.storage}/lfs/{sha256}"}, b""

    # tags and branches

    def create_reference(self, request: Request, repo_id: str, kind: str, name: str) -> dict:
        repo, wanted = self.repo(request, repo_id, write=True), request.json()
        if kind == "branch":
            references, revision = repo.branches, wanted.get("startingPoint", "main")
        else:
            # for a tag the address has what is tagged, the body has the name
            references, revision, name = repo.tags, name, wanted["tag"]
        if name in references:
            raise Refused(409, f"the {kind} {name} already exists")
        references[name] = repo.find(revision).sha
        return {}

    # writing

    def preupload(self, request: Request, repo_id: str, revision: str) -> dict:
        """Which files are LFS, and what the repository has under their names (the client leaves out what is equal)."""
        commit = self.repo(request, repo_id, write=True).find(revision)
        answers = []
        for wanted in request.json()["files"]:
            path, name = wanted["path"], wanted["path"].split("/")[-1]
            lfs = wanted["size"] > LFS_SIZE or any(fnmatch(name, pattern) for pattern in LFS_PATTERNS)
            entry = commit.entry(path) if path in commit.files else {}
            oid = entry.get("lfs", entry).get("oid")
            mode = "lfs" if lfs else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": answers, "commitOid": commit.sha}

    def lfs_batch(self, request: Request, repo_id: str) -> dict:
        self.repo(request, repo_id, write=True)
        objects = []
        for wanted in request.json()["objects"]:
            upload = {"upload": {"href": f"{self.storage}/lfs/{wanted['oid']}"}}
            there = wanted["oid"] in self.objects
            objects.append({**wanted, "authenticated": True, **({} if there else {"actions": upload})})
        return {"transfer": "basic", "objects": objects}

    def put_object(self, request: Request, sha256: str) -> dict:
        if hashlib.sha256(request.body).hexdigest() != sha256:
            raise Refused(400, "the content is not what the address says")
        self.objects[sha256] = request.body
        return {}

    def get_object(self, request: Request, sha256: str) -> tuple:
        if sha256 not in self.objects:
            raise Refused(404, f"no object {sha256}")
        return 200, {"ETag": f'"{sha256}"'}, self.objects[sha256]

    def commit(self, request: Request, repo_id: str, branch: str) -> dict:
        """Apply a commit, one operation a line, to the newest commit of a branch: all of it or nothing."""
        repo = self.repo(request, repo_id, write=True)
        if branch not in repo.branches:
            raise Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        parent = repo.find(branch)
        files, lfs, message = dict(parent.files), set(parent.lfs), ""
        for operation in map(json.loads, request.body.splitlines()):
            key, value = operation["key"], operation["value"]
            if key == "header":
                message = "\n\n".join(filter(None, [value["summary"], value.get("description")]))
                if value.get("parentCommit") not in (None, parent.sha, parent.sha[:7]):
                    raise Refused(412, f"{branch} is not at {value['parentCommit']} any more: it is at {parent.sha}")
                continue
            path = value["path"]
            if key == "file":
                files[path] = base64.b64decode(value["content"])
                lfs.discard(path)
            elif key == "lfsFile":
                if value["oid"] not in self.objects:
                    raise Refused(400, f"the content of {path} was not uploaded")
                files[path] = self.objects[value["oid"]]
                lfs.add(path)
            elif key in ("deletedFile", "deletedFolder"):
                gone = [name for name in files if name == path or name.startswith(path.rstrip("/") + "/")]
                if not gone:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
                for name in gone:
                    del files[name]
            else:
                raise Refused(400, f"unknown operation {key}")
        card, error = front_matter(files.get("README.md", b"").decode())
        if not error and repo_id.startswith("spaces/") and not {"sdk", "title"} <= set(card):
            error = "a Space says its title and its SDK"
        if error:
            raise Refused(400, f"Invalid metadata in README.md: {error}")
        commit = repo.commit(branch, message, files, lfs)
        url = f"{self.endpoint}/{repo_id}/commit/{commit.sha}"
        return {"success": True, "commitOid": commit.sha, "commitUrl": url, "hookOutput": ""}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: LoopbackHub

    def handle_error(self, request, client_address) -> None:
        # a client that hangs up is none of a test's business
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, asks the hub, writes the answer."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        pass

    def _handle(self) -> None:
        hub, address = self.server.hub, urlsplit(self.path)
        hub.requests.append((self.command, address.path))
        size = int(self.headers.get("Content-Length", 0))
        if hub.cuts(self.command, address.path):
            self.rfile.read(size // 2)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        # read in any case: what is left over would be taken for the next request
        body = self.rfile.read(size)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        request = Request(self.command, address.path, query, body, hub.tokens.get(token))
        if token and request.user is None and not address.path.startswith("/lfs/"):
            message = "Invalid credentials in Authorization header"
            self._write(401, {"X-Error-Message": message}, json.dumps({"error": message}).encode())
            return
        try:
            self._write(*hub.answer(request))
        except Exception:
            # not 500: the client would repeat the request
            self._write(501, {}, traceback.format_exc().encode())

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _write(self, status: int, headers: dict, body: bytes) -> None:
        ranged = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if ranged and status == 200:
            start, total = int(ranged[1]), len(body)
            stop = min(int(ranged[2]) + 1 if ranged[2] else total, total)
            status, body = (206, body[start:stop]) if start < total else (416, b"")
            span = f"{start}-{stop - 1}" if status == 206 else "*"
            headers = {**headers, "Content-Range": f"bytes {span}/{total}"}
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
