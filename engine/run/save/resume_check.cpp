#include "engine/run/save/resume_check.h"

#include "base/json.h"
#include "base/nearest.h"
#include "base/text.h"
#include "engine/config/foreign_keys.h"
#include "engine/run/resolve/training_inputs.h"
#include "engine/run/save/checkpoint_files.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace stagecraft {
namespace {

/// What a state on disk is no state of another value of, and what the model's bits follow from, is not among them:
/// the type of the optimizer, number formats, the model.
constexpr std::array kChangeable{"optimizer.params",
                                 "optimizer.groups",
                                 "scheduler",
                                 "gradient_clipping",
                                 "train_batch_size",
                                 "train_micro_batch_size_per_gpu",
                                 "loss",
                                 "seed",
                                 "data",
                                 "validation",
                                 "checkpoint.every_steps"};

/// Whether what `key` names is `inside`, or lies in it.
bool lies_in(std::string_view key, std::string_view inside) {
  return key.starts_with(inside) && (key.size() == inside.size() || key[inside.size()] == '.');
}

bool is_changeable(std::string_view key) {
  return std::ranges::any_of(kChangeable, [&](const char* root) { return lies_in(key, root); });
}

/// "/optimizer/params/lr" as --set and --allow spell it.
std::string dotted(std::string pointer) {
  pointer.erase(0, 1);
  std::ranges::replace(pointer, '/', '.');
  return pointer;
}

/// All values that differ, in the order of their keys.
std::vector<ResumeChange> differences(const Json& before, const Json& now, std::int64_t step) {
  std::vector<ResumeChange> found;
  for (const Json& patch : Json::diff(before, now)) {
    const auto pointer = patch.at("path").get<std::string>();
    const Json::json_pointer at(pointer);
    const auto value = [&](const Json& json) { return json.contains(at) ? json.at(at) : Json(); };
    found.push_back({step, pointer, value(before), value(now)});
  }
  return found;
}

std::string shown(const Json& value) { return value.is_null() ? "nothing" : json::brief(value); }

std::string difference_text(const ResumeChange& difference) {
  const bool length = difference.pointer == "/scheduler/params/total_num_steps";
  return fmt::format("{}: {} there, {} in this run{}", difference.pointer, shown(difference.before),
                     shown(difference.now), length ? " (the run's length, where the config has none)" : "");
}

constexpr const char* kNewRun = "a new run with \"initial_checkpoint\" starts from its weights";

/// What is to be allowed where `key` has changed. Another schedule of rates, or other data, differs in several keys.
std::string allowance(const std::string& key) {
  for (const std::string root : {"scheduler", "data"}) {
    if (lies_in(key, root)) return root;
  }
  return key;
}

/// All that differs, at once, and how the run gets on: who allows one key learns of no second.
std::string refusal_text(const std::vector<ResumeChange>& refused) {
  std::vector<std::string> texts, never;
  std::vector<std::string> allow;
  for (const ResumeChange& change : refused) {
    const std::string key = dotted(change.pointer), its = allowance(key);
    texts.push_back(difference_text(change));
    if (!is_changeable(key)) {
      never.push_back(key);
    } else if (std::ranges::find(allow, its) == allow.end()) {
      allow.push_back(its);
    }
  }
  const std::string all = fmt::format("{}", fmt::join(texts, "; "));
  if (never.size() == refused.size()) return fmt::format("{}; {}", all, kNewRun);
  if (!never.empty())
    return fmt::format("{}; no resume can change {}: {}", all, fmt::join(never, ", "), kNewRun);
  return fmt::format("{}; --allow {} goes on with what is said now", all, fmt::join(allow, " --allow "));
}

/// Whether a program brought a run's batches. What they are is its own business, so such a run goes on from
/// any data, and a run with data from such a one. Of the model only the layers' names and sizes are compared
/// then, as its state is read: its fingerprint has the samples in it.
bool brings_batches(const Json& identity) {
  const Json::json_pointer type("/data/type");
  return identity.contains(type) && identity.at(type) == "given";
}

}  // namespace

void check_allowed(const std::vector<std::string>& keys) {
  const std::vector<std::string> known{kChangeable.begin(), kChangeable.end()};
  for (const std::string& key : keys) {
    const bool holds_some =
        std::ranges::any_of(known, [&](const std::string& root) { return lies_in(root, key); });
    if (is_changeable(key) || holds_some) continue;
    std::string hint = did_you_mean(key, known);
    const std::string slashed = key.starts_with('/') ? dotted(key) : dotted(foreign_place(key));
    if (is_changeable(slashed)) hint = fmt::format("; did you mean \"{}\"?", slashed);
    throw InputError({"--allow " + key, ""},
                     fmt::format("no resume can change this; expected one of {}, or a key inside one{}",
                                 fmt::join(known, ", "), hint));
  }
}

namespace {

/// Whether the optimizer keeps the same tensors for each parameter.
bool keeps_the_same(const ModelOptimizer& a, const ModelOptimizer& b, const Model& model) {
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    for (std::size_t i = 0; i < model.layers[static_cast<std::size_t>(layer)]->parameters().size(); ++i) {
      const auto same = [](const StateSpec& one, const StateSpec& other) {
        return one.name == other.name && one.shape == other.shape;
      };
      if (!std::ranges::equal(a.state_of(layer, i), b.state_of(layer, i), same)) return false;
    }
  }
  return true;
}

/// Throws InputError for a key inside one of kChangeable that none of `configs` has: a slip would allow nothing, and
/// nobody would hear of it.
void require_known(const std::string& key, const std::vector<const Json*>& configs) {
  if (std::ranges::any_of(kChangeable, [&](const char* root) { return lies_in(root, key); })) return;
  std::vector<std::string> beside;
  const bool known = !key.ends_with('.') && std::ranges::any_of(configs, [&](const Json* at) {
    for (std::string_view rest = key; !rest.empty();) {
      const std::string before = key.substr(0, key.size() - rest.size());
      const std::string part(take_until(rest, "."));
      if (at->is_object() && !at->contains(part)) {
        for (const auto& [name, value] : at->items()) beside.push_back(before + name);
        return false;
      }
      if (at->is_object()) {
        at = &at->at(part);
        continue;
      }
      std::string_view digits = part;
      const auto index = take_number(digits);
      if (!at->is_array() || !index || !digits.empty() || static_cast<std::size_t>(*index) >= at->size())
        return false;
      at = &at->at(static_cast<std::size_t>(*index));
    }
    return true;
  });
  if (known) return;
  throw InputError(
      {"--allow " + key, ""},
      fmt::format("neither this config nor the checkpoint has such a key{}", did_you_mean(key, beside)));
}

/// "--set pipeline.cuts=[4,8]": the stages of an asynchronous run, which it must go on with.
std::string its_cuts(const Json& pipeline) {
  Json cuts = pipeline.at("first_layers");
  cuts.erase(0);
  return fmt::format("--set pipeline.cuts={}", cuts.dump());
}

}  // namespace

std::vector<ResumeChange> check_resume(const Manifest& manifest, const std::string& checkpoint,
                                       const RunConfig& config, const TrainingInputs& inputs,
                                       const Plan& plan, const std::vector<std::string>& allowed) {
  const auto refuse = [&](const std::string& why) {
    throw InputError({checkpoint, ""}, "this run cannot go on from there: " + why);
  };
  const auto is_allowed = [&](const std::string& key) {
    return is_changeable(key) &&
           std::ranges::any_of(allowed, [&](const std::string& root) { return lies_in(key, root); });
  };
  const bool synchronous = find_schedule(plan.schedule.name).synchronous;
  if (manifest.synchronous && !synchronous) {
    refuse(fmt::format("its schedule was synchronous, {} is not", plan.schedule.name));
  }
  const std::int64_t steps = run_shape(config, *inputs.data, synchronous).steps;
  Json before = manifest.training, now = training_identity(config, steps, manifest.synchronous);
  const Json whole = json::write(config);
  const bool given_each_step = manifest.given_rate && manifest.given_rate->each_step;
  if (manifest.given_rate && !given_each_step) {  // one rate for all steps to come, as a config would say it
    before["optimizer"]["params"]["lr"] = *manifest.given_rate->lr;
    before["scheduler"] = json::write(SchedulerConfig{});
  }
  for (const std::string& key : allowed) require_known(key, {&before, &now, &whole});
  const bool given = brings_batches(before) || brings_batches(now);
  for (Json* identity : {&before, &now}) {
    if (!given) break;
    identity->erase("data");
    (*identity)["model"].erase("fields");
  }
  std::vector<ResumeChange> changes = differences(before, now, manifest.step);
  std::vector<ResumeChange> refused = changes;
  std::erase_if(refused, [&](const ResumeChange& change) { return is_allowed(dotted(change.pointer)); });
  if (!refused.empty()) refuse(refusal_text(refused));
  // A program that makes steps itself gives them their rates again.
  if (given_each_step && !brings_batches(whole) && !is_allowed("scheduler")) {
    refuse(
        "a function of the program that made its steps gave them their learning rate, and no file has it; "
        "--allow scheduler goes on with the config's");
  }
  const bool optimizer_changed =
      std::ranges::any_of(changes, [](const ResumeChange& c) { return c.pointer.starts_with("/optimizer"); });
  if (optimizer_changed) {
    const auto old = json::read<OptimizerConfig>(before.at("optimizer"), {checkpoint, "/training/optimizer"});
    if (!keeps_the_same(ModelOptimizer(old, inputs.model, {}), *inputs.optimizer, inputs.model)) {
      refuse("with these optimizer.params the optimizer keeps other tensors than the state has; " +
             std::string(kNewRun));
    }
  }
  if (const std::string data = inputs.data->fingerprint(); !given && manifest.data != data) {
    if (!is_allowed("data"))
      refuse("the data files have changed; --allow data goes on with what they have now");
    changes.push_back({manifest.step, "/data", manifest.data, data});
  }
  if (!given && manifest.model != inputs.model.fingerprint)
    refuse(fmt::format("the model has changed; {}", kNewRun));
  const std::vector<ResumeChange> pipeline = differences(manifest.pipeline, pipeline_of(plan), manifest.step);
  if (!manifest.synchronous && !pipeline.empty()) {
    refuse(fmt::format("an asynchronous run goes on with its own pipeline only ({}); {} has its stages",
                       difference_text(pipeline.front()), its_cuts(manifest.pipeline)));
  }
  return changes;
}

std::string change_text(const ResumeChange& change) {
  return fmt::format("{} is {} from step {} on, it was {}", dotted(change.pointer), shown(change.now),
                     change.step, shown(change.before));
}

}  // namespace stagecraft
