#include "engine/config/config.h"

#include "base/json.h"
#include "engine/config/foreign_keys.h"
#include "engine/optimizers/adam.h"
#include "engine/optimizers/muon.h"
#include "engine/optimizers/staleness_advice.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace stagecraft;
using test::ScratchFolder;

namespace {

Json minimal() {
  return Json::parse(R"({
    "model": {"family": "mlp", "hidden": [8]},
    "data": {"type": "synthetic"},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "SGD"},
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 12,
    "train_steps": 5
  })");
}

RunConfig read(const Json& json, const std::vector<std::string>& overrides = {}) {
  const ScratchFolder folder;
  return read_run_config(folder.write("run.json", json.dump()), overrides);
}

/// What the parser says of `json`; "" when it takes it.
std::string config_refusal(const Json& json, const std::vector<std::string>& overrides = {}) {
  try {
    (void)read(json, overrides);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

std::string config_refusal(const char* key, const Json& value) {
  Json json = minimal();
  json[Json::json_pointer(key)] = value;
  return config_refusal(json);
}

using stagecraft::test::says;

/// Calls `visit(schema of a key, pointer)` for every key with a plain type, wherever it stands.
template <class Visit>
void each_key(const Json& schema, const std::string& pointer, const Visit& visit) {
  if (!schema.contains("properties")) return;
  for (const auto& [key, value] : schema.at("properties").items()) {
    const std::string here = fmt::format("{}/{}", pointer, key);
    if (value.contains("type") && value["type"] != "object") visit(value, here);
    each_key(value, here, visit);
  }
}

}  // namespace

TEST_CASE("the number of micro-batches is the batch over their size, rounded up", "[config]") {
  CHECK(read(minimal()).micro_batches() == 6);
  Json json = minimal();
  json["gradient_accumulation_steps"] = 6;
  CHECK(read(json).micro_batches() == 6);
}

TEST_CASE("batch arithmetic that does not add up shows all three numbers", "[config]") {
  const std::string what = config_refusal("/gradient_accumulation_steps", 4);
  CHECK(says(what, "/gradient_accumulation_steps: train_batch_size 64"));
  CHECK(says(what, "train_micro_batch_size_per_gpu 12"));
  CHECK(says(what, "gradient_accumulation_steps 4"));
  CHECK(says(what, "are 6"));
  CHECK(says(config_refusal("/train_micro_batch_size_per_gpu", 65), "does not fit into train_batch_size 64"));
}

TEST_CASE("unknown keys, wrong types and values out of range are refused by pointer", "[config]") {
  CHECK(says(config_refusal("/trian_steps", 3), "/trian_steps: unknown key; did you mean \"train_steps\"?"));
  CHECK(says(config_refusal("/pipeline", Json{{"schedul", "1f1b"}}), "did you mean \"schedule\"?"));
  CHECK(says(config_refusal("/train_batch_size", "64"), "/train_batch_size: expected an integer"));
  CHECK(says(config_refusal("/train_batch_size", 0), "/train_batch_size: expected at least 1"));
  for (const char* key :
       {"timeout_s", "start_up_timeout_s", "save_timeout_s", "stop_timeout_s", "timeout_pause_s"}) {
    CHECK(
        says(config_refusal("/comms", Json{{key, 1e10}}), "expected at least 0.001 and at most 1000000000"));
    CHECK(says(config_refusal("/comms", Json{{key, 0}}), "expected at least 0.001"));
    CHECK(config_refusal("/comms", Json{{key, 1e9}}).empty());
  }
  CHECK(says(config_refusal("/dtype", "bfloat16"), "/dtype: expected float32 or float64"));
  CHECK(says(config_refusal("/pipeline", Json{{"schedule", "1f1c"}}), "did you mean \"1f1b\"?"));
  CHECK(says(config_refusal("/optimizer", Json{{"type", "Adma"}}), "/optimizer/type"));
  Json no_model = minimal();
  no_model.erase("model");
  CHECK(says(config_refusal(no_model), "the key \"model\" is missing"));
}

TEST_CASE("keys of other trainers are told where a run config says the same", "[config]") {
  const Json schema = run_config_schema();
  const std::vector<std::string> keys{"learning_rate",
                                      "lr",
                                      "weight_decay",
                                      "global_batch_size",
                                      "microbatches",
                                      "micro_batch_size",
                                      "max_steps",
                                      "num_train_epochs",
                                      "max_grad_norm",
                                      "eval_steps",
                                      "save_steps",
                                      "save_total_limit",
                                      "output_dir",
                                      "logging_steps",
                                      "gradient_checkpointing",
                                      "pipeline_parallel_size",
                                      "pipeline-model-parallel-size",
                                      "data_parallel_size",
                                      "ddp_backend",
                                      "mixed_precision",
                                      "seq_length",
                                      "warmup_steps",
                                      "lr_scheduler_type",
                                      "zero_optimization",
                                      "fsdp",
                                      "tensor_parallel_size",
                                      "report_to",
                                      "num_workers",
                                      "LOCAL_RANK",
                                      "torch_compile",
                                      "resume_from_checkpoint",
                                      "model_name_or_path"};
  for (const std::string& key : keys) {
    CAPTURE(key);
    for (const char* inside : {"", "/pipeline"}) {
      const std::string at = inside + ("/" + key);
      CHECK(says(config_refusal(at.c_str(), 1), at + ": does not exist here: "));
    }
    // What it names is there.
    const std::string said = foreign_key(key);
    const std::size_t begin = said.find("it is /");
    if (begin == std::string::npos) continue;
    const std::string pointer = said.substr(begin + 6, said.find_first_of(",; ", begin + 6) - begin - 6);
    const std::string last = pointer.substr(pointer.rfind('/') + 1);
    CAPTURE(pointer);
    CHECK(schema.dump().find("\"" + last + "\":") != std::string::npos);
    CHECK(schema.at("properties").contains(pointer.substr(1, pointer.find('/', 1) - 1)));
  }
  CHECK(foreign_key("weather").empty());
  // Nobody is sent where the key is.
  Json config = minimal();
  config["optimizer"] = {{"type", "AdamW"}, {"params", {{"momentum", 0.9}}}};
  CHECK(says(config_refusal(config), "/optimizer/params/momentum: unknown key"));
}

TEST_CASE("sizes that no run has are refused before anything is computed with them", "[config]") {
  constexpr std::int64_t huge = 9'000'000'000'000'000'000;
  for (const char* key : {"/train_batch_size", "/train_micro_batch_size_per_gpu", "/train_steps",
                          "/data/samples", "/data/validation_samples"}) {
    CHECK(says(config_refusal(key, huge), fmt::format("{}: expected at least", key)));
    CHECK(says(config_refusal(key, huge), "and at most 1e+15, found 9000000000000000000"));
  }
  CHECK(says(
      config_refusal("/train_batch_size", 1'000'000'000'000),
      "/train_micro_batch_size_per_gpu: train_batch_size 1000000000000 in micro-batches of 12 samples makes "
      "83333333334 micro-batches; expected at most 10000000"));
}

TEST_CASE("either steps or epochs, not both, not none", "[config]") {
  CHECK(says(config_refusal("/epochs", 1), "either \"train_steps\" or \"epochs\""));
  Json neither = minimal();
  neither.erase("train_steps");
  CHECK(says(config_refusal(neither), "either \"train_steps\" or \"epochs\""));
  neither["epochs"] = 2;
  CHECK(config_refusal(neither).empty());
}

TEST_CASE("mixed precision is one of two, over float32 weights", "[config]") {
  for (const char* key : {"bf16", "fp16"}) {
    Json json = minimal();
    json[key] = {{"enabled", true}};
    CHECK(config_refusal(json).empty());
    json["dtype"] = "float64";
    CHECK(says(config_refusal(json), "/dtype: mixed precision updates float32 weights"));
    json["dtype"] = "float32";
    json["bf16"] = json["fp16"] = {{"enabled", true}};
    CHECK(says(config_refusal(json), "/fp16: bf16 and fp16 are both enabled"));
  }
}

TEST_CASE("NCCL's order of additions is for NCCL", "[config]") {
  CHECK(read(minimal()).comms.replica_sum == SumOrder::ordered);
  for (const char* backend : {"auto", "local", "mpi"}) {
    const std::string said = config_refusal("/comms", Json{{"replica_sum", "nccl"}, {"backend", backend}});
    for (const std::string& part :
         {std::string("/comms/replica_sum"), fmt::format("backend is \"{}\"", backend)})
      CHECK(says(said, part));
    CHECK(config_refusal("/comms", Json{{"replica_sum", "ordered"}, {"backend", backend}}).empty());
  }
  Json gpus = minimal();
  gpus["device"] = "cuda";
  gpus["comms"] = {{"replica_sum", "nccl"}, {"backend", "nccl"}};
  CHECK(config_refusal(gpus).empty());
  CHECK(says(config_refusal("/comms/replica_sum", "any"), "/comms/replica_sum"));
}

TEST_CASE("what is for GPUs is refused by its key in a run on none", "[config]") {
  const std::vector<std::pair<const char*, Json>> keys{
      {"/cuda/tf32", true}, {"/cuda/deterministic", true}, {"/comms/backend", "nccl"}};
  for (const auto& [key, value] : keys) {
    const std::string said = config_refusal(key, value);
    INFO(key << ": " << said);
    CHECK(says(said, fmt::format("run.json: {}: ", key)));
    CHECK(says(said, "device is \"cpu\""));
    Json gpus = minimal();
    gpus["device"] = "cuda";
    gpus[Json::json_pointer(key)] = value;
    CHECK(config_refusal(gpus).empty());
  }
  // Nothing is recorded without a GPU, whether asked for or not.
  for (const bool graphs : {false, true}) CHECK(config_refusal("/cuda/graphs", graphs).empty());
}

TEST_CASE("steps are skipped where all stages can do so together, or each by itself", "[config]") {
  CHECK(read(minimal()).overflow_policy() == OnOverflow::stop);
  Json json = minimal();
  json["on_overflow"] = "skip";
  CHECK(read(json).overflow_policy() == OnOverflow::skip);
  json["gradient_norm"] = false;
  json["pipeline"] = {{"schedule", "1f1b"}};
  CHECK(says(config_refusal(json), "/on_overflow: under 1f1b all stages skip a step or none does"));
  json["pipeline"] = {{"schedule", "pipedream"}};
  CHECK(config_refusal(json).empty());
  json["on_overflow"] = "halt";
  CHECK(says(config_refusal(json), "/on_overflow"));

  Json half = minimal();
  half["fp16"] = {{"enabled", true}};
  CHECK(read(half).overflow_policy() == OnOverflow::skip);
  half["on_overflow"] = "skip";
  CHECK(config_refusal(half).empty());
  half["on_overflow"] = "stop";
  CHECK(says(config_refusal(half), "/on_overflow: fp16 finds its loss scale by skipping"));
}

TEST_CASE("float16 needs an agreement on overflows, and a scale that makes sense", "[config]") {
  Json json = minimal();
  json["fp16"] = {
      {"enabled", true}, {"initial_scale_power", 16}, {"loss_scale_window", 100}, {"hysteresis", 2}};
  CHECK(config_refusal(json).empty());
  json["gradient_norm"] = false;
  CHECK(says(config_refusal(json), "/gradient_norm: fp16 hears of overflows by the norm"));
  json.erase("gradient_norm");
  for (const auto& [key, value] : std::map<std::string, double>{{"loss_scale", -1},
                                                                {"initial_scale_power", 61},
                                                                {"loss_scale_window", 0},
                                                                {"min_loss_scale", 0}}) {
    Json wrong = json;
    wrong["fp16"][key] = value;
    CHECK(says(config_refusal(wrong), "/fp16/" + key));
  }
}

TEST_CASE("a delay's settings are checked, and no time is lost silently", "[config]") {
  const auto said = [](Json settings) {
    settings["type"] = "delay";
    Json json = minimal();
    json["model"] = {{"family", "sequential"}, {"layers", {settings}}};
    return config_refusal(json);
  };
  CHECK(said({{"forward_ms", 2.5}, {"wait", "spin"}, {"features", 8}, {"factors", {1, 0, 5}}}).empty());
  CHECK(said({{"backward_weight_ms", 1}, {"parameters", 1}}).empty());
  CHECK(says(said({{"forward_ms", -1}}), "/model/layers/0/forward_ms: expected at least 0"));
  CHECK(says(said({{"backward_input_ms", 1e9}}),
             "/model/layers/0/backward_input_ms: expected at least 0 and at most"));
  CHECK(says(said({{"backward_weight_ms", 1}}),
             "/model/layers/0/backward_weight_ms: a layer without parameters"));
  CHECK(says(said({{"wait", "nap"}}),
             "/model/layers/0/wait: expected one of \"sleep\", \"spin\", found \"nap\""));
  CHECK(says(said({{"features", -1}}), "/model/layers/0/features: expected at least 0"));
  CHECK(says(said({{"parameters", 0.5}}), "/model/layers/0/parameters: expected an integer"));
  CHECK(says(said({{"factors", {1, -2}}}), "/model/layers/0/factors: expected factors of at least 0"));
  CHECK(says(said({{"forwards_ms", 1}}), "did you mean \"forward_ms\"?"));
}

TEST_CASE("activation checkpointing names which forwards are repeated", "[config]") {
  Json json = minimal();
  for (const char* which : {"none", "all", "all_but_last", "auto"}) {
    json["activation_checkpointing"] = {{"recompute", which}};
    CHECK(config_refusal(json).empty());
  }
  json["activation_checkpointing"] = {{"recompute", "some"}};
  CHECK(says(config_refusal(json), "/activation_checkpointing/recompute: "));
  json["activation_checkpointing"] = {{"partition_activations", true}};
  CHECK(says(config_refusal(json), "/activation_checkpointing/partition_activations: unknown key"));
}

TEST_CASE("an asynchronous schedule refuses clipping and another update interval, with the reason",
          "[config]") {
  Json json = minimal();
  json["pipeline"] = {{"schedule", "pipedream"}};
  CHECK(config_refusal(json).empty());
  json["pipeline"]["update_interval"] = 6;
  CHECK(config_refusal(json).empty());
  json["pipeline"]["update_interval"] = 3;
  CHECK(says(config_refusal(json), "/pipeline/update_interval"));
  json["pipeline"].erase("update_interval");
  json["gradient_clipping"] = 1.0;
  CHECK(says(config_refusal(json), "/gradient_clipping: pipedream cannot clip by the global norm"));
  json["pipeline"]["schedule"] = "2bw";
  CHECK(says(config_refusal(json), "/gradient_clipping: 2bw cannot clip by the global norm"));
}

TEST_CASE(
    "a schedule is asked only for what it has: stages per rank, forwards ahead, one version per micro-batch",
    "[config]") {
  const auto with = [](const char* schedule, const char* key, const Json& value) {
    Json json = minimal();
    json["pipeline"] = {{"schedule", schedule}, {key, value}};
    return config_refusal(json);
  };
  CHECK(with("interleaved_1f1b", "virtual_stages", 3).empty());
  CHECK(says(with("1f1b", "virtual_stages", 2), "/pipeline/virtual_stages"));
  CHECK(says(with("interleaved_1f1b", "virtual_stages", 0), "/pipeline/virtual_stages"));
  CHECK(with("1f1b", "warmup_extra", 2).empty());
  CHECK(with("fill_drain", "warmup_extra", 0).empty());
  CHECK(says(with("fill_drain", "warmup_extra", 1), "/pipeline/warmup_extra"));
  CHECK(with("pipedream", "vertical_sync", true).empty());
  CHECK(says(with("1f1b", "vertical_sync", true), "/pipeline/vertical_sync"));
  CHECK(with("2bw", "synchronous_steps", 3).empty());
  CHECK(says(with("zb_h1", "synchronous_steps", 3), "/pipeline/synchronous_steps: is for asynchronous"));
}

TEST_CASE("an asynchronous run must name an optimizer, and the refusal names one that stands late gradients",
          "[config]") {
  Json json = minimal();
  json.erase("optimizer");
  CHECK(read(json).optimizer.type.name() == "SGD");
  json["pipeline"] = {{"schedule", "pipedream"}};
  const std::string refusal = config_refusal(json);
  CHECK(says(refusal, "/optimizer: is missing: gradients of pipedream come late"));
  json["optimizer"] = {{"staleness", {{"look_ahead", 0.5}}}};
  CHECK(says(config_refusal(json), "/optimizer: has no type"));
  const std::size_t advice = refusal.find("{\"type\"");
  REQUIRE(advice != std::string::npos);
  json["optimizer"] = Json::parse(refusal.substr(advice, refusal.rfind('}') + 1 - advice));
  const RunConfig config = read(json);
  CHECK(config.optimizer.type.name() == "Muon");
  CHECK(config.optimizer.staleness.look_ahead == 1);
  CHECK(staleness_advice(config.optimizer, {.most = 1, .mean = 0.4, .of_some = true}).empty());
  OptimizerConfig plain = config.optimizer;
  plain.staleness.look_ahead = 0;
  CHECK(says(staleness_advice(plain, {.most = 2}), "2 updates late if optimizer.staleness.look_ahead is 1"));
  CHECK(staleness_advice(plain, {}).empty());
  CHECK(says(staleness_advice(config.optimizer, {.most = 1, .mean = 0.875, .of_some = true}),
             "late by up to 0.88 updates. Smaller micro-batches make it less"));
  CHECK(staleness_advice(config.optimizer, {.most = 1, .mean = 1}).empty());
  json["optimizer"] = {{"type", "AdamW"}};
  CHECK(read(json).optimizer.type.name() == "AdamW");
  json["optimizer"]["staleness"] = {{"look_ahead", -1}};
  CHECK(says(config_refusal(json), "/optimizer/staleness/look_ahead"));
  json["optimizer"]["staleness"] = {{"lookahead", 1}};
  CHECK(says(config_refusal(json), "look_ahead"));
}

TEST_CASE("overrides reach any key, as JSON or as a bare string", "[config]") {
  const RunConfig config =
      read(minimal(), {"train_steps=7", "run_dir=runs/other", "optimizer.type=AdamW",
                       "optimizer.params.lr=0.5", "model.hidden=[3,4]", "model.hidden.1=5"});
  CHECK(config.train_steps == 7);
  CHECK(config.run_dir == "runs/other");
  CHECK(config.optimizer.type.get_if<AdamWConfig>()->lr == 0.5);
  CHECK(config.model.family.get_if<MlpConfig>()->hidden == std::vector<std::int64_t>{3, 5});
}

TEST_CASE("an override of the run's length takes the other one's place", "[config]") {
  const RunConfig config = read(minimal(), {"epochs=3"});
  CHECK(config.epochs == 3);
  CHECK_FALSE(config.train_steps.has_value());
}

TEST_CASE("the ranks that a run may use leave it some, and stand alone", "[config]") {
  CHECK(says(config_refusal(minimal(), {"pipeline.ranks.min=3", "pipeline.ranks.max=2"}),
             "/pipeline/ranks/max"));
  CHECK(says(config_refusal(minimal(), {"pipeline.ranks={\"min\": 5, \"max\": 7, \"multiple_of\": 4}"}),
             "expected a multiple of 4 from 5 to max"));
  CHECK(says(config_refusal(minimal(), {"pipeline.ranks.min=2", "pipeline.stages=2"}), "expected alone"));
  const RankBounds bounds{.min = 3, .max = 9, .multiple_of = 2};
  CHECK(bounds.most_of(2) == 0);
  CHECK(bounds.most_of(3) == 0);
  CHECK(bounds.most_of(5) == 4);
  CHECK(bounds.most_of(100) == 8);
}

TEST_CASE("overrides of keys that do not exist are refused like the file's", "[config]") {
  CHECK(says(config_refusal(minimal(), {"train_step=7"}), "did you mean \"train_steps\"?"));
  CHECK(says(config_refusal(minimal(), {"train_step=7"}), "--set"));
  CHECK(says(config_refusal(minimal(), {"train_steps.x=7"}), "it has no key \"x\""));
  CHECK(says(config_refusal(minimal(), {"model.hidden.9=7"}), "expected an index below 1"));
  CHECK(says(config_refusal(minimal(), {"train_steps"}), "expected KEY=VALUE"));
}

TEST_CASE("--set is named where it brought what is wrong, and nowhere else", "[config]") {
  struct Case {
    const char *key, *value;  ///< in the file; value as JSON
    std::vector<std::string> overrides;
    const char* pointer;  ///< of what is said
    bool named;
  };
  const std::vector<Case> cases{
      // The file's, whatever else is set.
      {"/cuda", "3", {"train_steps=7"}, "/cuda", false},
      {"/cuda", "3", {"train_steps=7", "model.hidden.0=4"}, "/cuda", false},
      {"/trian_steps", "3", {"seed=7"}, "/trian_steps", false},
      {"/train_batch_size", "1", {"seed=7"}, "/train_micro_batch_size_per_gpu", false},
      {"/pipeline", R"({"schedule": "1f1c"})", {"pipeline.stages=2"}, "/pipeline/schedule", false},
      {"/model", R"({"family": "none"})", {"model.hidden=[4]"}, "/model/family", false},
      {"/model", "7", {"modeller=7"}, "/model", false},
      // One of the file's faults is mended, the other is still the file's.
      {"/comms",
       R"({"backend": 3, "replica_sum": "any"})",
       {"comms.backend=mpi"},
       "/comms/replica_sum",
       false},
      // The command line's: the key itself, what lies in it, what it lies in, and what it does to others.
      {"/seed", "7", {"seed=x"}, "/seed", true},
      {"/seed", R"("x")", {"seed=x"}, "/seed", true},
      {"/seed", "7", {"trian_steps=3"}, "/trian_steps", true},
      {"/seed", "7", {R"(comms={"backend": "mpj"})"}, "/comms/backend", true},
      {"/seed", "7", {"log.a/b~c=1"}, "/log/a~1b~0c", true},
      {"/loss", R"({"type": "cross_entropy"})", {"loss.type=", "loss=[3]"}, "/loss", true},
      {"/seed", "7", {"train_batch_size=1"}, "/train_micro_batch_size_per_gpu", true},
      {"/cuda", R"({"tf32": true})", {"seed=7"}, "/cuda/tf32", false},
      {"/seed", "7", {"seed=8", "cuda.tf32=true"}, "/cuda/tf32", true},
      {"/device", R"("cuda")", {"device=cpu", "comms.backend=nccl"}, "/comms/backend", true},
      {"/pipeline", R"({"schedule": "pipedream"})", {"gradient_clipping=1"}, "/gradient_clipping", true},
  };
  for (const Case& it : cases) {
    Json json = minimal();
    json[Json::json_pointer(it.key)] = Json::parse(it.value);
    const std::string said = config_refusal(json, it.overrides);
    INFO(it.key << " " << it.value << " --set " << fmt::format("{}", fmt::join(it.overrides, " --set "))
                << ": " << said);
    CHECK(says(said, fmt::format("run.json{}: {}: ", it.named ? " with --set" : "", it.pointer)));
  }
  Json no_model = minimal();
  no_model.erase("model");
  CHECK(says(config_refusal(no_model, {"seed=7"}), "run.json: the key \"model\" is missing"));
  CHECK(says(config_refusal(minimal(), {"device=cuda", "device=cpu", "cuda.deterministic=true"}),
             "run.json with --set: /cuda/deterministic: "));
}

TEST_CASE("what is written reads back as the same config", "[config]") {
  Json json = minimal();
  json["scheduler"] = {{"type", "WarmupLR"}, {"params", {{"warmup_num_steps", 3}}}};
  json["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {1}}};
  const Json effective = json::write(read(json));
  CHECK(json::write(read(effective)) == effective);
  CHECK(effective.at("comms").at("backend") == "auto");  // defaults are there
}

TEST_CASE("the shipped schema is the parser's", "[config]") {
  const Json shipped = json::parse_file(STAGECRAFT_TEST_DATA "/../../configs/run.schema.json");
  INFO("if the config changed on purpose: stagecraft schema run > configs/run.schema.json");
  CHECK(shipped == run_config_schema());
}

TEST_CASE("the parser keeps what the schema promises of every key", "[config]") {
  const Json schema = run_config_schema();
  int keys = 0;
  each_key(schema, "", [&](const Json& key, const std::string& pointer) {
    INFO(pointer);
    ++keys;
    // A value of no listed type is refused at that very place.
    CHECK(says(config_refusal(pointer.c_str(), Json{{"no", "such"}}), pointer));
    // The default is taken, as far as this key is concerned.
    if (key.contains("default") && pointer != "/gradient_norm") {
      const std::string said = config_refusal(pointer.c_str(), key.at("default"));
      CHECK((said.empty() || !says(said, pointer + ":")));
    }
    if (key.contains("minimum") && key["type"] == "integer") {
      CHECK(says(config_refusal(pointer.c_str(), key["minimum"].get<double>() - 1), pointer));
    }
  });
  CHECK(keys > 20);
  CHECK(schema.at("additionalProperties") == false);
  for (const Json& key : schema.at("required")) {
    Json json = minimal();
    json.erase(key.get<std::string>());
    CHECK(says(config_refusal(json), fmt::format("\"{}\" is missing", key.get<std::string>())));
  }
}
