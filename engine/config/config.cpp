#include "engine/config/config.h"

#include "base/file_kind.h"
#include "base/json.h"
#include "engine/config/foreign_keys.h"
#include "engine/optimizers/staleness_advice.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace stagecraft {
namespace {

/// What a value on the command line means: JSON where it parses, else the text itself.
Json override_value(const std::string& text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_discarded()) return value;
  Json word(text);
  try {
    (void)word.dump();  // as it will be written into config.json
  } catch (const Json::type_error&) {
    throw InputError({"--set " + text, ""}, "is not UTF-8, which a config is");
  }
  return word;
}

Json& element(Json& array, const std::string& index, const std::string& text) {
  const bool digits = !index.empty() && index.find_first_not_of("0123456789") == std::string::npos;
  const std::size_t at = digits && index.size() < 10 ? std::stoul(index) : array.size();
  if (at >= array.size()) {
    throw InputError({"--set " + text, ""},
                     fmt::format("expected an index below {}, found \"{}\"", array.size(), index));
  }
  return array[at];
}

/// An InputError out of `body` is about `place`.
template <class Body>
void said_at(const InputPlace& place, const Body& body) {
  try {
    body();
  } catch (const InputError& error) {
    throw InputError(place, error.what());
  }
}

}  // namespace

void apply_override(Json& json, const std::string& override_text) {
  const std::size_t equals = override_text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError({"--set " + override_text, ""}, "expected KEY=VALUE, as in optimizer.params.lr=0.01");
  }
  const std::string path = override_text.substr(0, equals);
  Json* at = &json;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (at->is_array()) {
      at = &element(*at, key, override_text);
    } else if (at->is_object() || at->is_null()) {
      at = &(*at)[key];
    } else {
      throw InputError({"--set " + override_text, ""},
                       fmt::format("\"{}\" is {}, it has no key \"{}\"",
                                   path.substr(0, begin == 0 ? 0 : begin - 1), json::brief(*at), key));
    }
    begin = end + 1;
  }
  *at = override_value(override_text.substr(equals + 1));
}

namespace {

/// Whoever trains with late gradients says by which optimizer: the default, SGD, is not known to stand them.
void require_optimizer(const Json& json, const InputPlace& place) {
  static const Json::json_pointer schedule("/pipeline/schedule");
  if (!json.contains(schedule)) return;
  const bool late = std::ranges::any_of(schedules(), [&](const Schedule& known) {
    return !known.synchronous && json.at(schedule) == known.name;
  });
  const Json given = json.value("optimizer", Json::object());
  if (!late || !given.is_object() || given.contains("type")) return;
  throw InputError(
      json::detail::child(place, "optimizer"),
      fmt::format("{}: gradients of {} come late, and few optimizers stand that. Known to do best: {} "
                  "(docs/convergence.md)",
                  json.contains("optimizer") ? "has no type" : "is missing",
                  json.at(schedule).get<std::string>(), asynchronous_optimizer()));
}

/// Numbers of a config go into float32, whoever reads them: beyond its range is a slip, and what computes with it
/// would say so without the key.
void require_float32(const Json& json, const InputPlace& place) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (json.is_number_float() && !(std::abs(json.get<double>()) <= kMost)) {
    json::detail::wrong(place, json,
                        fmt::format("a number from {:.3g} to {:.3g}, the range of float32", -kMost, kMost));
  }
  if (!json.is_structured()) return;
  for (const auto& [key, value] : json.items()) require_float32(value, json::detail::child(place, key));
}

/// What is for GPUs, in a run on none. cuda.graphs is not refused: without a GPU nothing is recorded either way.
void refuse_gpu_keys(const RunConfig& config, const std::string& file) {
  if (config.device != DeviceKind::cpu) return;
  const auto refuse = [&](const char* pointer, const std::string& why) {
    throw InputError({file, pointer}, why);
  };
  for (const auto& [given, pointer] : {std::pair{config.cuda.tf32, "/cuda/tf32"},
                                       std::pair{config.cuda.deterministic, "/cuda/deterministic"}}) {
    if (given)
      refuse(pointer,
             "is for device \"cuda\", and device is \"cpu\"; leave it out, or set device to \"cuda\"");
  }
  if (config.comms.backend == Backend::nccl) {
    refuse(
        "/comms/backend",
        "nccl moves tensors between GPUs, and device is \"cpu\"; set device to \"cuda\", or use auto, local "
        "or mpi");
  }
}

/// Other trainers have a narrow type where ours has what computes in it beside float32 weights.
void refuse_narrow_dtype(const Json& json, const std::string& file) {
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string()) return;
  const auto dtype = json["dtype"].get<std::string>();
  for (const auto& [names, key] : {std::pair{" bf16 bfloat16 torch.bfloat16 ", "bf16"},
                                   std::pair{" fp16 float16 half torch.float16 ", "fp16"}}) {
    if (std::string_view(names).find(fmt::format(" {} ", dtype)) == std::string_view::npos) continue;
    throw InputError(
        {file, "/dtype"},
        fmt::format("expected float32 or float64, found {}; to compute in it, with weights of float32, "
                    "leave dtype out and set \"{}\": {{\"enabled\": true}}",
                    json::brief(json["dtype"]), key));
  }
}

/// As json::read, with a better word for keys of other trainers.
RunConfig read_keys(const Json& json, const std::string& file) {
  try {
    return json::read<RunConfig>(json, {file, ""});
  } catch (const UnknownKeyError& error) {
    const std::string elsewhere = foreign_key(error.key());
    const bool is_right_there = elsewhere.ends_with(" " + error.place().pointer);
    if (elsewhere.empty() || is_right_there) throw;
    throw InputError(error.place(), elsewhere);
  }
}

RunConfig config_from(const Json& json, const std::string& file) {
  require_optimizer(json, {file, ""});
  require_float32(json, {file, ""});
  require_kind(json, {file, ""}, "run config");
  refuse_narrow_dtype(json, file);
  RunConfig config = read_keys(json, file);
  refuse_gpu_keys(config, file);
  if (config.pipeline.schedule) {
    (void)find_schedule(*config.pipeline.schedule, {file, "/pipeline/schedule"});
    check_schedule(config, *config.pipeline.schedule, file);
  }
  return config;
}

/// Of a message about `file`; empty where it is about all of it.
std::string pointer_in(const std::string& message, const std::string& file) {
  if (!message.starts_with(file + ": /")) return "";
  const std::size_t begin = file.size() + 2;
  return message.substr(begin, message.find(": ", begin) - begin);
}

/// Of the key that an override sets.
std::string pointer_of(const std::string& override_text) {
  std::string pointer = "/";
  for (const char c : override_text.substr(0, override_text.find('='))) {
    if (c == '.') {
      pointer += '/';
    } else if (c == '~' || c == '/') {
      pointer += c == '~' ? "~0" : "~1";
    } else {
      pointer += c;
    }
  }
  return pointer;
}

/// Whether `said`, of `file` with the overrides in it, is about what they brought: a key that they set, or what the
/// file alone does not have.
bool came_with(const std::vector<std::string>& overrides, const Json& alone, const std::string& file,
               const std::string& said) {
  const std::string pointer = pointer_in(said, file);
  bool inside = false;
  for (const std::string& text : overrides) {
    const std::string key = pointer_of(text);
    if (pointer == key || pointer.starts_with(key + "/")) return true;
    inside = inside || key.starts_with(pointer + "/");
  }
  try {
    (void)config_from(alone, file);
    return true;
  } catch (const InputError& error) {
    return inside && error.what() != said;
  }
}

}  // namespace

RunConfig read_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  const Json alone = json::parse_file(path);
  if (!alone.is_object()) json::detail::wrong({path, ""}, alone, "an object");
  Json json = alone;
  for (const std::string& text : overrides) {
    // One of the two says how long a run is; the one on the command line takes the other's place.
    if (text.starts_with("train_steps=")) json.erase("epochs");
    if (text.starts_with("epochs=")) json.erase("train_steps");
    apply_override(json, text);
  }
  try {
    return config_from(json, path);
  } catch (const InputError& error) {
    if (overrides.empty() || !came_with(overrides, alone, path, error.what())) throw;
  }
  // Nobody should look into the file for a slip on the command line.
  return config_from(json, fmt::format("{} with --set", path));
}

RunConfig run_config_from(const Json& json, const std::string& name) {
  if (!json.is_object()) json::detail::wrong({name, ""}, json, "an object");
  return config_from(json, name);
}

int stages_per_rank(const PipelineConfig& pipeline, const Schedule& schedule) {
  return pipeline.virtual_stages.value_or(schedule.virtual_stages);
}

const char* schedule_names() {
  static const std::string text = [] {
    std::vector<std::string> names;
    for (const Schedule& schedule : schedules()) names.emplace_back(schedule.name);
    return fmt::format("{}; absent: the plan's, or 1f1b", fmt::join(names, ", "));
  }();
  return text.c_str();
}

void check_schedule(const RunConfig& config, const std::string& name, const std::string& file) {
  const Schedule& schedule = find_schedule(name);
  const PipelineConfig& pipeline = config.pipeline;
  const int m = config.micro_batches();
  ScheduleRequest request;
  request.vertical_sync = pipeline.vertical_sync.value_or(false);
  request.warmup_extra = pipeline.warmup_extra.value_or(0);
  request.group_sizes = {m};
  said_at({file, "/pipeline/virtual_stages"},
          [&] { request.placement = schedule.place(1, stages_per_rank(pipeline, schedule)); });
  schedule.check(request, {file, "/pipeline"});
  request.clip = config.gradient_clipping > 0;
  said_at({file, "/gradient_clipping"}, [&] { schedule.check(request); });
  if (config.fp16.enabled && !schedule.clips) {
    throw InputError({file, "/fp16"},
                     fmt::format("float16 needs a moment at which all ranks agree whether gradients have "
                                 "overflowed, and {} has none; use a synchronous schedule, or bf16",
                                 name));
  }
  if (schedule.synchronous && pipeline.synchronous_steps > 0) {
    throw InputError({file, "/pipeline/synchronous_steps"},
                     fmt::format("is for asynchronous schedules; all steps of {} are synchronous", name));
  }
  if (schedule.synchronous && !config.gradient_norm && config.overflow_policy() == OnOverflow::skip) {
    throw InputError({file, "/on_overflow"},
                     fmt::format("under {} all stages skip a step or none does, so ranks must agree on the "
                                 "gradient's norm; set gradient_norm to true, or on_overflow to \"stop\"",
                                 name));
  }
  if (pipeline.update_interval.value_or(m) == m) return;
  throw InputError(
      {file, "/pipeline/update_interval"},
      fmt::format("train_batch_size {} in micro-batches of {} makes an update every {} "
                  "micro-batches, found {}; change train_batch_size or leave this out",
                  config.train_batch_size, config.micro_batch_size, m, *pipeline.update_interval));
}

Json run_config_schema() {
  Json schema;
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "Stagecraft run configuration";
  schema.update(json::schema_of<RunConfig>());
  return schema;
}

Json training_identity(const RunConfig& config, std::int64_t steps, bool synchronous) {
  const Json all = json::write(config);
  Json identity;
  for (const char* key :
       {"model", "data", "loss", "optimizer", "scheduler", "gradient_clipping", "train_batch_size",
        "train_micro_batch_size_per_gpu", "seed", "dtype", "bf16", "fp16"}) {
    identity[key] = all.value(key, Json());  // a model may bring its loss
  }
  if (config.matrix_products == MatrixProducts::onednn)
    identity["matrix_products"] = all.at("matrix_products");
  for (const std::string& key : config.data.source.entry().location_keys) identity["data"].erase(key);
  for (const std::string& key : config.model.family.entry().location_keys) identity["model"].erase(key);
  Json& optimizer = identity["optimizer"];
  if (optimizer["groups"].empty()) optimizer.erase("groups");
  if (optimizer["staleness"] == json::write(StalenessConfig{})) optimizer.erase("staleness");
  const Json::json_pointer total("/params/total_num_steps");
  if (Json& scheduler = identity["scheduler"]; scheduler.contains(total) && scheduler[total] == 0) {
    scheduler[total] = steps;
  }
  if (Json& scheduler = identity["scheduler"]; scheduler["type"] == "WarmupCosineLR") {
    Json& params = scheduler["params"];  // the only warm-up that it had once
    if (params["warmup_type"] == "log") params.erase("warmup_type");
  }
  if (!synchronous) {
    identity["validation"] = all.at("validation");
    identity["checkpoint"]["every_steps"] = all.at("checkpoint").at("every_steps");
    if (const std::int64_t first = config.pipeline.synchronous_steps; first > 0)
      identity["synchronous_steps"] = first;
  }
  return identity;
}

}  // namespace stagecraft
