"""A scripted W&B server: as much of it as one run needs."""

import base64
import gzip
import json
import threading
from contextlib import ExitStack

from web_kit import answering

STATUS = {"": 200, "down": 500, "refusing": 401, "silent": 500}


class FakeWandb:
    """As much of W&B's server as one run needs; in `trouble` it answers 500 or 401, or if it is silent not at all."""

    def __init__(self):
        self.rows: dict[int, dict] = {}
        self.keys: set[str] = set()
        self.started = 0
        self.refused = 0
        self.trouble = ""
        self.asked = threading.Event()
        self.end = threading.Event()
        self._open = ExitStack()
        self.url = self._open.enter_context(answering(self.reply, every_method=True))

    def close(self):
        self.end.set()
        self._open.close()

    def reply(self, path, headers, body):
        body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        authorization = headers.get("authorization", " ").split(" ")[1]
        self.keys.add(base64.b64decode(authorization).decode().removeprefix("api:"))
        self.asked.set()
        if self.trouble == "silent":
            self.end.wait()
        answer = json.dumps(self.answer(path, body) if not self.trouble else {}).encode()
        return STATUS[self.trouble], {"content-type": "application/json"}, answer

    def answer(self, path, body):
        if path == "/graphql":
            asked = json.loads(body)
            return {"data": self.data(asked.get("operationName"), asked.get("variables") or {}, asked["query"])}
        if path.endswith("/file_stream"):
            history = json.loads(body).get("files", {}).get("wandb-history.jsonl", {"content": []})
            for line in map(json.loads, history["content"]):
                self.refused += line["_step"] in self.rows
                self.rows[line["_step"]] = line
        return {}

    def data(self, operation, variables, query):
        project = {"id": "p", "name": "chimera", "entity": {"id": "e", "name": "me"}}
        tail = json.dumps([json.dumps(self.rows[max(self.rows)])] if self.rows else [])
        bucket = {
            "id": "UnVu",
            "name": variables.get("name"),
            "displayName": "shown",
            "historyLineCount": len(self.rows),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": tail,
            "eventsTail": "[]",
            "config": "{}",
            "summaryMetrics": "{}",
            "tags": [],
            "wandbConfig": '{"t": 1}',
            "project": project,
        }
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "RunResumeStatus":
            return {"model": {**project, "bucket": bucket if self.started else None}}
        if operation == "UpsertBucket":
            self.started += 1
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/files/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "UnVu", "uploadHeaders": [], "files": files}}
        if "viewer" in query:
            return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        return {}
