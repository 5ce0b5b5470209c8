#include "cli/file_kind.h"

#include "base/error.h"

#include <array>
#include <initializer_list>
#include <utility>

namespace stagecraft::cli {
namespace {

bool has_any(const Json& json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (json.contains(key)) return true;
  }
  return false;
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
  if (has_any(json, {"ranks", "group_sizes"})) return "schedule";
  if (has_any(json, {"measurements"})) return "profile";
  if (has_any(json, {"levels"})) return "cluster";
  if (has_any(json, {"traceEvents"})) return "trace";
  if (has_any(json, {"data", "optimizer", "train_batch_size", "train_micro_batch_size_per_gpu"}))
    return "run config";
  return has_any(json, {"stages", "schedule", "micro_batches", "costs"}) ? "plan" : "";
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

}  // namespace stagecraft::cli
