// What a run saves, and what it says of a checkpoint that is not whole.

#include "engine/run/save/checkpoint.h"

#include "base/fingerprint.h"
#include "base/json.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/save/export.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"
#include "test/engine/trainer_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace stagecraft::test {
namespace fs = std::filesystem;

TEST_CASE("a broken checkpoint is refused by the name of the file", "[checkpoint]") {
  Json config = tiny_config();
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  const std::string folder = run.checkpoint(1);
  const std::string file = folder + "/" + read_manifest(folder).files.front().name;
  const std::string good = read_text_file(file);
  SECTION("one bit") {
    std::string bad = good;
    bad[bad.size() - 3] = static_cast<char>(bad[bad.size() - 3] ^ 1);
    write_file_atomically(file, bad);
  }
  SECTION("cut short") { write_file_atomically(file, good.substr(0, good.size() / 2)); }
  SECTION("gone") { fs::remove(file); }
  CHECK(says(run.complaint(true, {"train_steps=2"}), file));
  CHECK(says(read_text_file(run.dir() + "/exit.json"), "loading"));
}

TEST_CASE("a folder without its manifest is no checkpoint, and is kept when the run comes to its step again",
          "[checkpoint]") {
  Json config = tiny_config();
  config["train_steps"] = 6;
  const Run run(config);
  (void)run.train();
  const std::size_t files = names_in(run.checkpoint(6)).size();
  fs::remove(run.checkpoint(6) + "/manifest.json");
  CHECK(newest_checkpoint(RunPaths{run.dir()}.checkpoints()) == run.checkpoint(3));
  CHECK(run.train(true).result.outcome.steps == 6);
  CHECK(names_in(run.checkpoint(6)).size() == files);
  CHECK(names_in(run.checkpoint(6) + ".earlier-1").size() == files - 1);
}

TEST_CASE("checkpoints/ and logs/ that lead elsewhere are refused, and nothing there is touched",
          "[checkpoint]") {
  Json config = tiny_config();
  config["train_steps"] = 3;
  for (const char* name : {"checkpoints", "logs"}) {
    const Run run(config);
    (void)run.train();
    const ScratchFolder victim;
    victim.write("film.mkv.part", "half");
    fs::create_directory(victim.path("step-00000007"));
    victim.write("step-00000007/data", "x");
    fs::rename(run.dir() + "/" + name, run.dir() + "/moved");
    fs::create_directory_symlink(victim.path(""), run.dir() + "/" + name);
    CHECK(says(run.complaint(true, {"train_steps=6"}), fmt::format("/{}: is a link", name)));
    CHECK(names_in(victim.path("")) == std::vector<std::string>{"film.mkv.part", "step-00000007"});
    CHECK(read_text_file(victim.path("step-00000007/data")) == "x");
  }
}

TEST_CASE("a manifest that was changed by hand, or is of another step, is refused", "[checkpoint]") {
  Json config = tiny_config();
  config["train_steps"] = 3;
  const Run run(config);
  (void)run.train();
  const std::string path = run.checkpoint(3) + "/manifest.json";
  const Json good = json::parse_file(path);
  for (const auto& [key, value] : good.items()) {
    CAPTURE(key);
    Json changed = good;
    if (value.is_number()) changed[key] = value.get<int>() == 1 ? 2 : 1;
    if (value.is_boolean()) changed[key] = !value.get<bool>();
    if (value.is_string()) changed[key] = "x";
    if (value.is_object()) changed[key]["x"] = 1;
    if (value.is_array() && !value.empty()) changed[key].erase(0);
    if (value.is_array() && value.empty()) changed[key].push_back("x");
    REQUIRE(changed != good);
    write_json_file(path, changed);
    CHECK(says(run.complaint(true, {"train_steps=6"}), "/step-00000003/manifest.json"));
  }
  write_json_file(path, good);
  fs::rename(run.checkpoint(3), run.checkpoint(5));
  CHECK(says(run.complaint(true, {"train_steps=6"}), "/step-00000005: is of step 3, as its manifest says"));
  fs::rename(run.checkpoint(5), run.checkpoint(3));
  CHECK(says(run.complaint(true, {"train_steps=2"}),
             "/train_steps: 2 steps in all are fewer than the 3 that "));
  CHECK(run.train(true, {"train_steps=6"}).result.outcome.steps == 6);
}

TEST_CASE("what is no file in a layer's place is refused, and not read for ever", "[checkpoint]") {
  Json config = tiny_config();
  config["train_steps"] = 3;
  const Run run(config);
  (void)run.train();
  const std::string file = run.checkpoint(3) + "/" + read_manifest(run.checkpoint(3)).files.front().name;
  fs::remove(file);
  fs::create_symlink("/dev/zero", file);
  CHECK(says(run.complaint(true, {"train_steps=6"}), file + ": is no file"));
}

TEST_CASE("a manifest names files of its own folder, each once", "[checkpoint]") {
  const auto refusal = [](const Json& files) {
    Json manifest = {{"format", 2},
                     {"run", "run.0123456789abcdef"},
                     {"step", 1},
                     {"epoch", 0},
                     {"epoch_step", 1},
                     {"training", {}},
                     {"validation_owed", false},
                     {"threads_per_rank", 1},
                     {"synchronous", true},
                     {"pipeline", {}},
                     {"data", ""},
                     {"model", ""},
                     {"files", files},
                     {"hash", ""}};
    try {
      (void)json::read<Manifest>(manifest, {"manifest.json", ""});
      return std::string();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  const auto file = [](const std::string& name, std::int64_t bytes = 5) {
    return Json{{"name", name}, {"bytes", bytes}, {"hash", "0"}};
  };
  CHECK(refusal(Json::array({file("layer1.safetensors"), file("a%zz.safetensors")})) == "");
  for (const std::string& name : std::vector<std::string>{
           "", "x", ".", "..", ".safetensors", "/etc/passwd", "../layer1.safetensors", "a/b.safetensors",
           "/dev/zero", "layer1.safetensors/", "..\\x.safetensors", ".hidden.safetensors", "config.json",
           std::string("a\0.safetensors", 14), std::string(300, 'a') + ".safetensors"}) {
    INFO(name);
    CHECK(says(refusal(Json::array({file(name)})),
               "manifest.json: /files/0/name: expected the name of a .safetensors file"));
  }
  CHECK(says(refusal(Json::array({file("a.safetensors", -1)})), "/files/0/bytes"));
}

TEST_CASE("a checkpoint file is held against its size before it is read, and reading it can be ended",
          "[checkpoint]") {
  const ScratchFolder folder;
  const std::string contents(100, 'x');
  folder.write("a.safetensors", contents);
  Manifest manifest;
  manifest.files = {{"a.safetensors", 100, fingerprint(contents)}, {"z.safetensors", 100, "0"}};
  const std::string path = folder.path(".");
  int pieces = 0;
  CHECK_NOTHROW(check_checkpoint_file(path, manifest, "a.safetensors", [&] { ++pieces; }));
  CHECK(pieces > 0);
  struct Ended {};
  CHECK_THROWS_AS(check_checkpoint_file(path, manifest, "a.safetensors", [] { throw Ended{}; }), Ended);
  fs::create_symlink("/dev/zero", folder.path("z.safetensors"));
  CHECK_THROWS_WITH(check_checkpoint_file(path, manifest, "z.safetensors"),
                    Catch::Matchers::ContainsSubstring("z.safetensors: is no file"));
  folder.write("big", "");
  fs::resize_file(folder.path("big"), std::uintmax_t{1} << 40U);
  fs::remove(folder.path("z.safetensors"));
  fs::create_symlink(folder.path("big"), folder.path("z.safetensors"));
  CHECK_THROWS_WITH(check_checkpoint_file(path, manifest, "z.safetensors"),
                    Catch::Matchers::ContainsSubstring("1099511627776 bytes, but the manifest has 100"));
}

TEST_CASE("weights of two layers that were swapped are refused, whatever their shapes", "[checkpoint]") {
  Json config = tiny_config();
  config["model"] = {{"family", "mlp"}, {"hidden", {8, 8, 8}}};
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  const ScratchFolder folder;
  std::vector<std::string> files;
  for (const CheckpointFile& file : read_manifest(run.checkpoint(1)).files) files.push_back(file.name);
  REQUIRE(files.size() >= 3);
  const auto start_from = [&](const std::string& first, const std::string& second) {
    const std::string weights = folder.path("weights");
    fs::remove_all(weights);
    fs::create_directory(weights);
    for (const std::string& name : files) {
      const std::string& to = name == first ? second : name == second ? first : name;
      fs::copy_file(run.checkpoint(1) + "/" + name, weights + "/" + to);
    }
    const Run other(config);
    return other.complaint(false, {"initial_checkpoint=" + weights});
  };
  CHECK(start_from("", "") == "");
  for (std::size_t i = 1; i < files.size(); ++i) {
    INFO(files[0] << " and " << files[i]);
    const std::string said = start_from(files[0], files[i]);
    CHECK(says(said, "/__metadata__/layer: expected "));
    CHECK(says(said, "files of two layers were swapped or renamed"));
  }
}

TEST_CASE("layers of any name are saved and loaded", "[checkpoint]") {
  std::string chinese;
  for (int i = 0; i < 40; ++i) chinese += "\xe5\xb1\x82";
  Json config = tiny_config();
  config["model"] = Json::parse(R"({"family": "sequential", "layers": [
    {"type": "linear", "features": 6}, {"type": "relu"}, {"type": "linear", "features": 4}]})");
  config["model"]["layers"][0]["name"] = chinese;
  config["model"]["layers"][2]["name"] = std::string(300, 'x');
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  CHECK(run.train(true, {"train_steps=2"}).result.outcome.steps == 2);
}

TEST_CASE("saving is tried before the first step", "[checkpoint]") {
  const Run run(tiny_config());
  SECTION("a place that cannot be written") {
    // Nobody can make a folder in a file.
    (void)run.train();
    fs::remove_all(run.dir() + "/checkpoints");
    std::ofstream(run.dir() + "/checkpoints") << "";
    CHECK(says(run.complaint(true), "/checkpoints: cannot be read: Not a directory"));
  }
  SECTION("nothing is left of it") {
    (void)run.train();
    for (const auto& entry : fs::directory_iterator(run.dir() + "/checkpoints")) {
      CHECK(says(entry.path().filename().string(), "step-"));
    }
  }
}

TEST_CASE("an export has the averaged weights where there are any", "[checkpoint]") {
  Json config = tiny_config();
  const bool averages = GENERATE(false, true);
  if (averages) config["optimizer"]["ema_decay"] = 0.9;
  const Run run(config);
  const std::string printed = run.train().printed;
  CHECK(says(printed, "averaged weights (decay 0.9 per step)") == averages);
  const ScratchFolder folder;
  ExportRequest request;
  request.from = run.dir();
  request.out = folder.path("out");
  const ExportRecord record = export_weights(request, nullptr);
  CHECK(record.averaged.value_or(false) == averages);
  const SafetensorsFile exported = read_safetensors(folder.path("out") + "/model.safetensors");
  const std::string checkpoint = run.checkpoint(9);
  std::size_t compared = 0;
  for (const CheckpointFile& file : read_manifest(checkpoint).files) {
    const SafetensorsFile saved = read_safetensors(checkpoint + "/" + file.name);
    for (const auto& [name, tensor] : saved.tensors) {
      if (!name.starts_with("parameter/")) continue;
      const std::string parameter = name.substr(10);
      const at::Tensor& got = exported.tensors.at(saved.metadata.at("layer") + "." + parameter);
      CHECK(at::equal(got, averages ? saved.tensors.at("optimizer/" + parameter + "/ema") : tensor));
      CHECK(at::equal(got, tensor) != averages);
      ++compared;
    }
  }
  CHECK(compared == 6);
}

TEST_CASE("the optimizer's state must be there whole, and nothing else", "[checkpoint]") {
  Json config = tiny_config();
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  const std::string folder = run.checkpoint(1);
  const std::string name = read_manifest(folder).files.front().name;
  const SafetensorsFile good = read_safetensors(folder + "/" + name);
  std::map<std::string, at::Tensor> tensors = good.tensors;
  std::map<std::string, std::string> metadata = good.metadata;
  std::string expected;
  SECTION("a missing one would begin at zero") {
    std::erase_if(tensors, [](const auto& entry) { return says(entry.first, "exp_avg_sq"); });
    expected = "has no tensor \"optimizer/";
  }
  SECTION("one that is not this optimizer's") {
    tensors["optimizer/weight/momentum_buffer"] = tensors.begin()->second;
    expected = "is none of this optimizer's";
  }
  SECTION("a number of steps beyond every number") {
    metadata["optimizer_steps"] = "99999999999999999999";
    expected = "expected a number of steps, found \"99999999999999999999\"";
  }
  write_safetensors(folder + "/" + name, {tensors.begin(), tensors.end()}, metadata);
  Json manifest = json::parse_file(folder + "/manifest.json");
  for (Json& file : manifest["files"]) {
    const std::string bytes = read_text_file(folder + "/" + file["name"].get<std::string>());
    file["bytes"] = bytes.size();
    file["hash"] = fingerprint(bytes);
  }
  write_file_atomically(folder + "/manifest.json", manifest_text(json::read<Manifest>(manifest, {"", ""})));
  CHECK(says(run.complaint(true, {"train_steps=2"}), expected));
}

TEST_CASE("a manifest with impossible threads is refused", "[checkpoint]") {
  Json config = tiny_config();
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  Json manifest = json::parse_file(run.checkpoint(1) + "/manifest.json");
  manifest["threads_per_rank"] = 100000;
  write_json_file(run.checkpoint(1) + "/manifest.json", manifest);
  CHECK(says(run.complaint(true, {"train_steps=2"}),
             "/threads_per_rank: expected at least 1 and at most 1024"));
}

TEST_CASE("weights start from another run's checkpoint", "[checkpoint]") {
  Json config = tiny_config();
  config["train_steps"] = 2;
  config["checkpoint"] = {{"at_start", true}, {"keep", 0}};
  const Run first(config);
  (void)first.train();
  REQUIRE(fs::exists(first.checkpoint(0) + "/manifest.json"));
  config["initial_checkpoint"] = first.checkpoint(2);
  config["seed"] = 77;
  const Run second(config);
  (void)second.train();
  const std::string file = read_manifest(second.checkpoint(0)).files.front().name;
  CHECK(read_manifest(second.checkpoint(0)).step == 0);
  // The optimizer's state is not taken, so only the weights agree: compare through a third run.
  config["initial_checkpoint"] = second.checkpoint(0);
  const Run third(config);
  (void)third.train();
  check_same_files(second.checkpoint(0), third.checkpoint(0));
  check_same(second.metrics(), third.metrics());
}

}  // namespace stagecraft::test
