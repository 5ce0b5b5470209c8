#include "base/file_kind.h"

#include "base/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

/// A kind of document, and keys of which it has one that no kind before it has.
struct Kind {
  const char* name;
  std::vector<const char*> keys;
};
const std::vector<Kind> kKinds{
    {"schedule", {"ranks", "group_sizes"}},
    {"profile", {"measurements"}},
    {"cluster", {"levels"}},
    {"trace", {"traceEvents"}},
    {"run summary", {"measured_steps"}},
    {"manifest", {"training", "layers"}},
    {"Hugging Face config", {"model_type", "architectures", "transformers_version"}},
    {"run config",
     {"train_batch_size", "train_micro_batch_size_per_gpu", "train_steps", "epochs", "run_dir"}},
    {"plan", {"stages", "schedule", "micro_batches", "costs"}},
};

bool is_a(const Json& json, const Kind& kind) {
  return std::ranges::any_of(kind.keys, [&](const char* key) { return json.contains(key); });
}

/// Of what is no JSON.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kBeginnings{{
    {"<svg", "picture"},
    {"<?xml", "picture"},
    {"<!DOCTYPE html", "web page"},
    {"<!doctype html", "web page"},
    {"<html", "web page"},
    {"stagecraft program", "schedule"},
    {"# bash completion of stagecraft", "completion"},
    {"#compdef stagecraft", "completion"},
}};

/// PyTorch's: actions as "0F3" or idle cells, between commas.
bool is_schedule_table(std::string_view text) {
  const std::string_view line = text.substr(0, text.find_first_of("\r\n"));
  return line.find(',') != std::string_view::npos &&
         line.find_first_not_of("0123456789,()\"; FBIWSENDRCVUNHAL_+-") == std::string_view::npos;
}

}  // namespace

std::string kind_of(const Json& json) {
  for (const Kind& kind : kKinds) {
    if (is_a(json, kind)) return kind.name;
  }
  return "";
}

void require_kind(const Json& json, const InputPlace& place, const std::string& kind) {
  const bool has_its_keys =
      std::ranges::any_of(kKinds, [&](const Kind& known) { return known.name == kind && is_a(json, known); });
  const std::string other = has_its_keys ? "" : kind_of(json);
  if (!other.empty()) throw InputError(place, fmt::format("is a {}; a {} is needed here", other, kind));
}

bool begins_as_json(char first) { return first == '{' || first == '[' || first == '/'; }

std::string kind_of_contents(std::string_view contents) {
  const std::size_t first = contents.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  const std::string_view text = contents.substr(first);
  if (begins_as_json(text.front())) {
    try {
      return kind_of(json::parse_text(std::string(contents), ""));
    } catch (const InputError&) {
      return "";
    }
  }
  for (const auto& [beginning, kind] : kBeginnings) {
    if (text.starts_with(beginning)) return std::string(kind);
  }
  // A schedule that people write may begin with comments.
  std::size_t line = 0;
  while (line < text.size() && (text[line] == '#' || text[line] == '\n' || text[line] == '\r')) {
    const std::size_t end = text.find('\n', line);
    if (end == std::string_view::npos) return "";
    line = end + 1;
  }
  if (text.substr(line).starts_with("stagecraft program")) return "schedule";
  return is_schedule_table(text) ? "schedule" : "";
}

std::string kind_at(const std::string& path) {
  if (is_folder(path)) return kind_of_folder(path);
  const std::string kind = kind_of_contents(read_file(path));
  return kind.empty() ? "a file" : "a " + kind;
}

bool is_model_folder(const std::string& path) {
  const std::string manifest = path + "/manifest.json";
  return is_there(manifest) && json::parse_file(manifest).contains("layers");
}

std::string kind_of_folder(const std::string& path) {
  const auto has = [&](const char* name) { return is_there(path + "/" + name); };
  if (has("plan.json") && has("config.json")) {
    return "a run directory (it holds config.json, plan.json, checkpoints/)";
  }
  if (is_model_folder(path)) return "a model folder that stagecraft-capture made";
  if (has("manifest.json")) return "a checkpoint";
  if (has("stagecraft_export.json") && !has("config.json")) return "an export that `stagecraft export` made";
  if (has("config.json")) return "a Hugging Face model";
  return "a folder";
}

}  // namespace stagecraft
