"""The rollout control: both dialects' routes, uploads that break off at every byte that matters,
the call orders of trainers, and what is refused; generations tell which weights made them."""

import json
import pathlib
import shutil
import socket
import struct
import tempfile
import threading
import unittest

import harness
from harness import MODEL_A, MODEL_B

PROMPT = [1, 2, 3, 4, 5, 6, 7]


def shards(model):
    return [path.read_bytes() for path in sorted(pathlib.Path(model).glob("*.safetensors"))]


def tensors_of(data):
    """Name -> (dtype, shape, bytes) of a safetensors file."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    body = data[8 + size:]
    return {name: (t["dtype"], t["shape"], body[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def pack(tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def all_tensors(model):
    merged = {}
    for shard in shards(model):
        merged.update(tensors_of(shard))
    return merged


class Control(harness.TestCase):
    """Every test begins and ends with A's weights."""

    def control(self, method, path, body=None, headers=None):
        return self.server.request(method, path, body, headers, listener="control")

    def call(self, path, body=None, status=200, headers=None):
        reply = self.control("POST", path, body, headers)
        self.assertEqual(reply.status, status, f"{path}: {reply.text[:500]}")
        return reply.json() if reply.text else None

    def read(self, path, status=200):
        reply = self.control("GET", path)
        self.assertEqual(reply.status, status, f"{path}: {reply.text[:500]}")
        return reply.json()

    def upload(self, path, data, headers=None):
        return self.control("POST", path, data,
                            {"Content-Type": "application/octet-stream", **(headers or {})})

    def tokens(self, **more):
        reply = self.server.post("/inference/v1/generate", {
            "token_ids": PROMPT,
            "sampling_params": {"max_tokens": 12, "temperature": 0, "ignore_eos": True}, **more})
        self.assertEqual(reply.status, 200, reply.text[:500])
        return reply.json()["choices"][0]

    def epoch(self):
        return self.read("/reload")["status"]

    def setUp(self):
        self.call("/resume")
        self.call("/update_weights", {"weight_dir": MODEL_A, "weight_version": "a"})
        self.of_a = self.tokens()["token_ids"]

    def assert_serves_a(self):
        self.assertEqual(self.tokens()["token_ids"], self.of_a)

    def of_b(self):
        if not hasattr(Control, "cached_b"):
            line = {"prompt_ids": PROMPT, "max_tokens": 12, "ignore_eos": True}
            Control.cached_b = harness.generate([line], model=MODEL_B)[0]["ids"]
        return Control.cached_b


class Updates(Control):

    def test_a_directory_outside_a_bracket_is_live_at_once(self):
        self.assertEqual(self.call("/update_weights", {"weight_dir": MODEL_B}), {"status": "ok"})
        self.assertEqual(self.tokens()["token_ids"], self.of_b())

    def test_a_bracket_commits_only_when_it_is_finished(self):
        self.call("/start_weight_update", {"is_checkpoint_format": True})
        reply = self.call("/update_weights", {"update_info": {"backend": "disk", "path": MODEL_B}})
        self.assertEqual(reply, {"message": "Weights updated"})
        self.assert_serves_a()
        self.assertEqual(self.call("/finish_weight_update", {"weight_version": "b7"}),
                         {"message": "Weight update finished"})
        self.assertEqual(self.read("/weight_info"), {"weight_version": "b7"})
        choice = self.tokens()
        self.assertEqual(choice["token_ids"], self.of_b())
        self.assertEqual([(s["version"], s["start"], s["end"]) for s in choice["weight_versions"]],
                         [("b7", 0, 12)])

    def test_bodies_may_be_missing_and_paths_may_end_with_a_slash(self):
        self.assertEqual(self.call("/start_weight_update/")["message"], "Weight update started")
        self.call("/update_weights/", {"update_info": {"path": MODEL_B}})
        self.assertEqual(self.call("/finish_weight_update/")["message"], "Weight update finished")

    def test_uploaded_shards_are_the_weights_of_the_bracket(self):
        self.call("/start_weight_update", {})
        for shard in shards(MODEL_B):
            reply = self.upload("/update_weights", shard)
            self.assertEqual(reply.status, 200, reply.text)
        self.assert_serves_a()
        self.call("/finish_weight_update", {"weight_version": "pushed"})
        self.assertEqual(self.read("/weight_info")["weight_version"], "pushed")
        self.assertEqual(self.tokens()["token_ids"], self.of_b())

    def test_many_uploads_of_one_tensor_each(self):
        self.call("/start_weight_update")
        for name, tensor in reversed(all_tensors(MODEL_B).items()):
            reply = self.upload("/update_weights", pack({name: tensor}))
            self.assertEqual(reply.status, 200, f"{name}: {reply.text}")
        self.call("/finish_weight_update")
        self.assertEqual(self.tokens()["token_ids"], self.of_b())

    def test_what_is_not_quantised_may_come_as_f32_in_a_bracket_and_whole(self):
        def widened(name, tensor):
            dtype, shape, data = tensor
            if dtype != "BF16" or ".experts." in name:
                return tensor
            return "F32", shape, b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))

        data = pack({name: widened(name, tensor) for name, tensor in all_tensors(MODEL_B).items()})
        self.call("/start_weight_update")
        reply = self.upload("/update_weights", data)
        self.assertEqual(reply.status, 200, reply.text)
        self.call("/finish_weight_update")
        self.assertEqual(self.tokens()["token_ids"], self.of_b())
        self.call("/update_weights", {"weight_dir": MODEL_A})
        reply = self.upload("/reload/upload", data)
        self.assertEqual(reply.status, 200, reply.text)
        self.assertEqual(self.tokens()["token_ids"], self.of_b())

    # One displaces the other, or finds it there. A trainer would send a 5xx again.
    def test_clients_that_upload_at_once_win_or_are_409(self):
        bodies = [pack(all_tensors(MODEL_A)), pack(all_tensors(MODEL_B))]
        statuses = []

        def upload(body):
            for _ in range(12):
                statuses.append(self.upload("/reload/upload", body).status)

        clients = [threading.Thread(target=upload, args=(body,)) for body in bodies]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.assertEqual(len(statuses), 24)
        self.assertLessEqual(set(statuses), {200, 409}, statuses)
        self.assertIn(200, statuses)
        self.assertEqual(self.upload("/reload/upload", bodies[1]).status, 200)

    # Whoever is told finds the record.
    def test_an_upload_that_is_refused_is_on_record_when_it_is_answered(self):
        tensors = all_tensors(MODEL_B)
        data = pack(tensors)
        dtype, shape, values = tensors["model.norm.weight"]
        wrong = pack({**tensors, "model.norm.weight": (dtype, shape, b"\xff" * len(values))})
        for body in [data[:-9], wrong] * 15:
            before = self.read("/status.json")["counters"]["roll_backs"]
            self.assertEqual(self.upload("/reload/upload", body).status, 409)
            self.assertEqual(self.read("/status.json")["counters"]["roll_backs"], before + 1)

    def test_one_upload_is_a_whole_update(self):
        reply = self.upload("/reload/upload?weight_version=whole", pack(all_tensors(MODEL_B)))
        self.assertEqual(reply.status, 200, reply.text)
        report = reply.json()
        self.assertEqual((report["state"], report["version"], report["slots_moved"]),
                         ("committed", "whole", 0))
        self.assertEqual(self.tokens()["token_ids"], self.of_b())

    def test_a_missing_tensor_is_named_and_nothing_changes(self):
        tensors = all_tensors(MODEL_B)
        tensors.pop("model.norm.weight")
        self.call("/start_weight_update")
        self.assertEqual(self.upload("/update_weights", pack(tensors)).status, 200)
        reply = self.control("POST", "/finish_weight_update")
        self.assertEqual(reply.status, 409)
        self.assertIn("model.norm.weight", reply.text)
        self.assert_serves_a()

    def test_an_unknown_tensor_is_refused_with_its_neighbours(self):
        self.call("/start_weight_update")
        tensors = {"model.norm.weigth": all_tensors(MODEL_B)["model.norm.weight"]}
        reply = self.upload("/update_weights", pack(tensors))
        self.assertEqual(reply.status, 409)
        self.assertIn("model.norm.weight", reply.text)
        self.assert_serves_a()

    def test_a_subset_that_is_declared_leaves_the_rest(self):
        self.call("/start_weight_update", {"names": ["model.norm.weight"]})
        tensor = {"model.norm.weight": all_tensors(MODEL_B)["model.norm.weight"]}
        self.assertEqual(self.upload("/update_weights", pack(tensor)).status, 200)
        self.call("/finish_weight_update")
        self.assertEqual(self.read("/reload")["report"]["state"], "committed")

    def test_a_start_over_an_open_bracket_begins_anew(self):
        self.call("/start_weight_update")
        self.assertEqual(self.upload("/update_weights", shards(MODEL_A)[0]).status, 200)
        self.call("/start_weight_update")
        for shard in shards(MODEL_B):
            self.assertEqual(self.upload("/update_weights", shard).status, 200)
        self.call("/finish_weight_update")
        self.assertEqual(self.tokens()["token_ids"], self.of_b())

    def test_calls_outside_of_a_bracket_are_409(self):
        self.assertEqual(self.control("POST", "/finish_weight_update").status, 409)
        self.assertEqual(self.upload("/update_weights", shards(MODEL_B)[0]).status, 409)
        self.call("/start_weight_update")
        self.assertEqual(self.control("POST", "/finish_weight_update").status, 409)

    def test_a_digest_is_checked_before_the_bytes_count(self):
        data = pack(all_tensors(MODEL_B))
        reply = self.upload("/reload/upload", data, {"X-Content-Digest": "xxh3-128=" + "0" * 32})
        self.assertEqual(reply.status, 409)
        self.assertIn("digest", reply.text)
        self.assert_serves_a()

    def test_what_is_no_safetensors_is_refused(self):
        good = pack(all_tensors(MODEL_B))
        size = struct.unpack("<Q", good[:8])[0]
        bad = {
            "empty header": struct.pack("<Q", 0),
            "huge header": struct.pack("<Q", 1 << 40) + b"{}",
            "no JSON": struct.pack("<Q", 4) + b"abcd",
            "cut": good[:-1],
            "cut in header": good[:20],
            "longer": good + b"x",
            "hole": pack({}) [:8] + b"",
            "dtype": good[:8] + good[8:8 + size].replace(b'"BF16"', b'"BF99"', 1) + good[8 + size:],
        }
        for what, data in bad.items():
            with self.subTest(what):
                self.assertIn(self.upload("/reload/upload", data).status, (400, 409, 413))
        self.assert_serves_a()

    def test_another_shape_or_dtype_of_the_same_size_is_refused(self):
        name = "model.embed_tokens.weight"
        dtype, shape, data = all_tensors(MODEL_B)[name]
        for wrong in ((dtype, shape[::-1], data), (dtype, [len(data) // 2], data),
                      ("I16", shape, data), ("U16", shape, data)):
            with self.subTest(wrong[:2]):
                self.call("/start_weight_update")
                reply = self.upload("/update_weights", pack({name: wrong}))
                self.assertEqual(reply.status, 409)
                self.assertIn(name, reply.text)
        self.assert_serves_a()

    def test_a_scope_of_another_type_or_of_nothing_is_refused(self):
        for scope in ({"experts": "x"}, {"experts": 1}, {"experts": []}, {"layers": []},
                      {"names": []}, {"layers": "0"}, {"experts": [[0]]}):
            with self.subTest(scope):
                reply = self.control("POST", "/reload", {"directory": MODEL_B, **scope})
                self.assertEqual(reply.status, 400, reply.text)
        self.assert_serves_a()

    def test_a_client_that_goes_away_in_an_upload_changes_nothing(self):
        data = pack(all_tensors(MODEL_B))
        header = struct.unpack("<Q", data[:8])[0]
        for cut in (0, 1, 7, 8, 9, header, 8 + header, 8 + header + 1, len(data) // 2,
                    len(data) - 1):
            with self.subTest(cut=cut):
                self.call("/start_weight_update")
                with socket.create_connection(("127.0.0.1", self.server.ports["control"])) as s:
                    s.sendall(b"POST /update_weights HTTP/1.1\r\nHost: x\r\n"
                              b"Content-Type: application/octet-stream\r\n"
                              + f"Content-Length: {len(data)}\r\n\r\n".encode() + data[:cut])
                self.assert_serves_a()
        # And the next update takes place.
        self.call("/update_weights", {"weight_dir": MODEL_B})
        self.assertEqual(self.tokens()["token_ids"], self.of_b())

    def test_paths_outside_of_the_roots_are_refused(self):
        with tempfile.TemporaryDirectory() as outside:
            link = pathlib.Path(outside) / "model"
            link.symlink_to("/etc")
            for path in ("/etc", str(link), MODEL_A + "/../../../etc", "", "no-such"):
                with self.subTest(path):
                    reply = self.control("POST", "/update_weights", {"weight_dir": path})
                    self.assertIn(reply.status, (400, 404))
        self.assert_serves_a()

    def test_nccl_is_refused_with_a_4xx_that_says_what_to_do(self):
        info = {"init_info": {"master_address": "127.0.0.1", "master_port": 1, "world_size": 2}}
        self.assertEqual(self.control("POST", "/init_weight_transfer_engine", info).status, 409)
        update = {"update_info": {"names": ["x"], "dtype_names": ["bfloat16"], "shapes": [[1]]}}
        reply = self.control("POST", "/update_weights", update)
        self.assertEqual(reply.status, 400)
        self.assertIn("safetensors", reply.text)

    def test_a_checkpoint_that_is_broken_leaves_the_old_weights(self):
        with tempfile.TemporaryDirectory(dir=pathlib.Path(MODEL_A).parent) as broken:
            shutil.copytree(MODEL_B, broken, dirs_exist_ok=True)
            shard = sorted(pathlib.Path(broken).glob("*.safetensors"))[0]
            shard.write_bytes(shard.read_bytes()[:-7])
            reply = self.control("POST", "/update_weights", {"weight_dir": broken})
            self.assertTrue(400 <= reply.status < 500, reply.status)
            self.assertIn(shard.name, reply.text)
        self.assert_serves_a()


    def test_a_directory_is_live_at_once_whatever_bracket_a_client_left_open(self):
        self.call("/start_weight_update")
        self.assertEqual(self.upload("/update_weights", shards(MODEL_A)[0]).status, 200)
        self.assertEqual(self.call("/update_weights", {"weight_dir": MODEL_B}), {"status": "ok"})
        self.assertEqual(self.tokens()["token_ids"], self.of_b())
        self.assertFalse(self.read("/reload")["bracket_open"])


class Pauses(Control):

    def test_modes_states_and_repetitions(self):
        self.assertEqual(self.read("/is_paused"), {"is_paused": False})
        for mode in ("keep", "wait", "abort", "keep"):
            self.assertEqual(self.call(f"/pause?mode={mode}"), {"status": "paused"})
            self.assertEqual(self.read("/is_paused"), {"is_paused": True})
        self.assertEqual(self.call("/resume"), {"status": "resumed"})
        self.assertEqual(self.call("/resume"), {"status": "resumed"})
        self.assertIn("error", self.call("/pause?mode=never", status=400))

    def test_requests_of_a_pause_wait_and_then_see_the_new_weights(self):
        self.call("/pause?mode=keep")
        result = {}
        thread = threading.Thread(target=lambda: result.update(self.tokens()))
        thread.start()
        self.call("/update_weights", {"weight_dir": MODEL_B, "weight_version": "b"})
        self.call("/resume")
        thread.join(60)
        self.assertEqual(result["token_ids"], self.of_b())
        self.assertEqual({s["version"] for s in result["weight_versions"]}, {"b"})

    def test_aborted_requests_give_their_tokens_so_far(self):
        result = {}

        def run():
            reply = self.server.post("/inference/v1/generate", {
                "token_ids": PROMPT, "request_id": "long",
                "sampling_params": {"max_tokens": 400, "temperature": 0, "ignore_eos": True}})
            result.update(reply.json()["choices"][0])

        thread = threading.Thread(target=run)
        thread.start()
        while self.read("/v1/loads")["num_running_reqs"] == 0 and thread.is_alive():
            pass
        self.call("/abort_requests", {})
        thread.join(60)
        self.assertIn(result["finish_reason"], ("abort", "length"))

    def test_a_drain_over_requests_that_a_pause_has_frozen_is_refused(self):
        results = []

        def run():
            results.append(self.server.post("/inference/v1/generate", {
                "token_ids": PROMPT,
                "sampling_params": {"max_tokens": 1000, "temperature": 0, "ignore_eos": True}}))

        thread = threading.Thread(target=run)
        thread.start()
        while self.read("/v1/loads")["num_running_reqs"] == 0 and thread.is_alive():
            pass
        self.call("/pause?mode=keep")
        self.assertEqual(self.read("/v1/loads")["num_running_reqs"], 1)
        reply = self.control("POST", "/reload", {"directory": MODEL_B, "in_flight": "drain"})
        self.assertEqual(reply.status, 409, reply.text)
        self.assertIn("resume", reply.text)
        self.call("/abort_requests", {})
        self.call("/resume")
        thread.join(60)
        self.assertEqual(results[0].json()["choices"][0]["finish_reason"], "abort")

    def test_sleep_and_wake(self):
        self.call("/sleep?level=1")
        self.assertEqual(self.read("/is_sleeping"), {"is_sleeping": True})
        self.assertEqual(self.control("GET", "/ready").status, 503)
        self.call("/wake_up?tags=weights&tags=kv_cache")
        self.assertEqual(self.read("/is_sleeping"), {"is_sleeping": False})
        self.assert_serves_a()


class Sglang(Control):

    def test_update_from_disk_and_state(self):
        self.assertEqual(self.call("/pause_generation", {})["status"], "ok")
        self.assertTrue(self.call("/flush_cache")["success"])
        reply = self.call("/update_weights_from_disk",
                          {"model_path": MODEL_B, "weight_version": "step-9"})
        self.assertTrue(reply["success"])
        self.assertIn("num_paused_requests", reply)
        self.assertEqual(self.call("/continue_generation", {"torch_empty_cache": True})["status"],
                         "ok")
        self.assertEqual(self.read("/get_weight_version"), {"weight_version": "step-9"})
        self.assertEqual(self.read("/model_info")["weight_version"], "step-9")
        generated = self.server.post("/generate", {
            "input_ids": PROMPT, "sampling_params": {
                "max_new_tokens": 12, "temperature": 0, "ignore_eos": True}}).json()
        self.assertEqual(generated["output_ids"], self.of_b())
        self.assertEqual(generated["meta_info"]["weight_version"], "step-9")

    def test_a_failure_is_400_with_success_false(self):
        reply = self.call("/update_weights_from_disk", {"model_path": "/etc"}, status=400)
        self.assertFalse(reply["success"])
        reply = self.call("/update_weights_from_distributed", {"names": []}, status=400)
        self.assertFalse(reply["success"])
        self.assert_serves_a()

    def test_checker_and_values(self):
        self.assertTrue(self.call("/weights_checker", {"action": "snapshot"})["success"])
        self.assertTrue(self.call("/weights_checker", {"action": "compare"})["success"])
        self.call("/update_weights_from_disk", {"model_path": MODEL_B})
        differ = self.call("/weights_checker", {"action": "compare"}, status=400)
        self.assertFalse(differ["success"])
        values = self.call("/get_weights_by_name", {"name": "model.norm.weight",
                                                    "truncate_size": 5})
        self.assertEqual(len(values), 5)
        self.assertFalse(self.call("/get_weights_by_name", {"name": "none"}, status=400)["success"])
        for path in ("/server_info", "/get_server_info", "/get_model_info",
                     "/v1/loads?include=core"):
            self.read(path)
        self.assertTrue(self.read("/health_generate")["success"])


class Checks(Control):

    def test_checksums_tell_weights_apart(self):
        before = self.call("/weight_checker", {"action": "checksum"})["checksums"]
        same = self.call("/weight_checker", {"action": "compare", "baseline": before})
        self.assertEqual(same, {"match": True, "mismatches": []})
        self.call("/update_weights", {"weight_dir": MODEL_B})
        other = self.call("/weight_checker", {"action": "compare", "baseline": before})
        self.assertFalse(other["match"])
        self.assertIn("final_norm.weight", other["mismatches"])

    def test_plan_and_reload_routes(self):
        plan = self.call("/reload/plan", {"directory": MODEL_B})
        self.assertEqual(plan["strategy"], "remap")
        report = self.call("/reload", {"directory": MODEL_B, "weight_version": "r",
                                       "in_flight": "recompute", "commit": "copy"})
        self.assertEqual((report["state"], report["strategy"]), ("committed", "copy"))
        shown = self.read(f"/reload/{report['id']}")
        self.assertEqual(shown["report"]["version"], "r")
        self.read("/reload/999999", status=404)
        self.read("/reload/x", status=400)
        self.assertEqual(self.call("/reset_prefix_cache"), {"success": True})
        self.assertEqual(self.read("/get_world_size?include_dp=true"), {"world_size": 1})
        self.assertEqual(self.call("/update_weight_version", {"new_version": "renamed"})["success"],
                         True)
        self.assertEqual(self.read("/weight_info"), {"weight_version": "renamed"})


class CallOrders(Control):
    """What the trainers' clients send, in their order, failures included."""

    def trl_step(self, model, version):
        self.call("/pause")
        self.call("/start_weight_update", {})
        for shard in shards(model):
            self.assertEqual(self.upload("/update_weights", shard).status, 200)
        self.call("/finish_weight_update", {"weight_version": version})
        self.assertTrue(self.call("/reset_prefix_cache")["success"])
        self.call("/resume")

    def test_trl_with_a_failure_in_the_middle(self):
        self.assertEqual(self.server.get("/health").status, 200)
        self.assertIn("max_model_len", self.server.get("/v1/models").json()["data"][0])
        self.read("/get_world_size?include_dp=true")
        self.trl_step(MODEL_B, "1")
        self.assertEqual(self.tokens()["token_ids"], self.of_b())
        # It leaves the server paused and the bracket open, and begins with a pause again.
        self.call("/pause")
        self.call("/start_weight_update", {})
        self.assertEqual(self.upload("/update_weights", shards(MODEL_A)[0][:-9]).status, 409)
        self.trl_step(MODEL_A, "2")
        self.assert_serves_a()

    def test_trl_asynchronous(self):
        self.call("/pause?mode=keep")
        self.call("/start_weight_update")
        self.call("/update_weights", {"update_info": {"backend": "disk", "path": MODEL_B}})
        self.call("/finish_weight_update")
        self.call("/resume")
        self.assertEqual(self.tokens()["token_ids"], self.of_b())

    def test_prime_rl_by_filesystem(self):
        self.server.get("/v1/models")
        self.assertEqual(self.control("POST", "/init_broadcaster").status, 404)
        self.call("/pause?mode=keep&clear_cache=false")
        self.assertEqual(self.call("/update_weights", {"weight_dir": MODEL_B}), {"status": "ok"})
        self.call("/resume")
        self.call("/resume")
        self.assertEqual(self.tokens(cache_salt="step-1")["token_ids"], self.of_b())

    def test_slime_and_areal_by_disk(self):
        self.read("/server_info")
        self.call("/pause_generation", {"mode": "retract"})
        self.call("/flush_cache")
        self.call("/update_weights_from_disk", {"model_path": MODEL_B, "weight_version": "1"})
        self.call("/continue_generation", {})
        self.assertEqual(self.tokens()["token_ids"], self.of_b())
        self.call("/pause_generation", {})
        self.call("/update_weights_from_disk",
                  {"model_path": MODEL_A, "abort_all_requests": True, "load_format": "auto"})
        self.call("/continue_generation", {})
        self.call("/abort_request", {"rid": "", "abort_all": True})
        self.assertEqual(self.read("/v1/loads")["num_reqs"], 0)
        self.assert_serves_a()


if __name__ == "__main__":
    unittest.main(verbosity=2)
