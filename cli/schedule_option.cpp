#include "cli/schedule_option.h"

#include "base/nearest.h"
#include "base/text.h"
#include "partitioner/advice/choices.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace stagecraft::cli {
namespace {

const std::vector<std::string> kSettings{"warmup_extra", "vertical_sync"};

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> pieces;
  std::istringstream in(text);
  for (std::string piece; std::getline(in, piece, ',');) pieces.push_back(piece);
  return pieces;
}

std::pair<std::string, std::optional<std::string>> key_and_value(const std::string& setting) {
  const std::size_t equals = setting.find('=');
  if (equals == std::string::npos) return {setting, std::nullopt};
  return {setting.substr(0, equals), setting.substr(equals + 1)};
}

int count_of(const std::optional<std::string>& value, const InputPlace& place) {
  std::string_view left = value ? std::string_view(*value) : std::string_view();
  const auto number = take_number(left);
  if (!number || !left.empty() || *number > kMostMicroBatches) {
    throw InputError(place, fmt::format("warmup_extra: expected warmup_extra=N, with N from 0 to {} micro-"
                                        "batches, found \"{}\"",
                                        kMostMicroBatches, value.value_or("")));
  }
  return *number;
}

bool truth_of(const std::optional<std::string>& value, const InputPlace& place) {
  if (!value || *value == "true") return true;
  if (*value == "false") return false;
  throw InputError(place, fmt::format("vertical_sync: expected true or false, found \"{}\"", *value));
}

/// "; pipedream takes vertical_sync": where another schedule does.
std::string who_takes(const std::string& setting) {
  for (const Schedule& schedule : schedules()) {
    const std::vector<std::string> known = settings_of(schedule);
    if (std::ranges::find(known, setting) != known.end()) {
      return fmt::format("; {} takes {}", schedule.name, setting);
    }
  }
  return "";
}

void take_setting(const std::string& setting, const Schedule& schedule, const InputPlace& place,
                  ScheduleAsked& asked) {
  const auto [key, value] = key_and_value(setting);
  const std::vector<std::string> known = settings_of(schedule);
  if (std::ranges::find(known, key) == known.end()) {
    throw InputError(place, fmt::format("{} takes {}, found \"{}\"{}{}", schedule.name,
                                        known.empty() ? std::string("no settings")
                                                      : fmt::format("the setting {}", fmt::join(known, ", ")),
                                        setting, did_you_mean(key, known), who_takes(key)));
  }
  if (key == "warmup_extra" ? asked.warmup_extra.has_value() : asked.vertical_sync.has_value())
    throw InputError(place, fmt::format("{}: the setting {} is given twice", schedule.name, key));
  if (key == "warmup_extra") {
    asked.warmup_extra = count_of(value, place);
  } else {
    asked.vertical_sync = truth_of(value, place);
  }
}

/// Whether `piece` goes on with the settings of the piece before it.
bool goes_on(const std::string& before, const std::string& piece) {
  if (before.find(':') == std::string::npos) return false;
  const std::string key = key_and_value(piece).first;
  return piece.find('=') != std::string::npos || std::ranges::find(kSettings, key) != kSettings.end();
}

/// "1f1b:warmup_extra=2", "zb_h1": the list's schedules, each with its settings.
std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries;
  for (const std::string& piece : split_at_commas(list)) {
    if (!entries.empty() && goes_on(entries.back(), piece)) {
      entries.back() += "," + piece;
    } else {
      entries.push_back(piece);
    }
  }
  if (entries.empty()) entries.emplace_back();  // no name, which is refused as any other wrong one
  return entries;
}

ScheduleAsked entry_asked(const std::string& entry, const InputPlace& place) {
  const std::size_t colon = std::min(entry.find(':'), entry.size());
  const Schedule& schedule = find_schedule(entry.substr(0, colon), place);
  ScheduleAsked asked{.name = schedule.name};
  if (colon == entry.size()) return asked;
  std::vector<std::string> settings = split_at_commas(entry.substr(colon + 1));
  if (settings.empty()) settings.emplace_back();
  for (const std::string& setting : settings) take_setting(setting, schedule, place, asked);
  return asked;
}

}  // namespace

void ScheduleAsked::apply_to(ScheduleChoice& choice) const {
  if (choice.name != name) choice = ScheduleChoice{.name = name, .agree_norm = choice.agree_norm};
  choice.agree_norm = choice.agree_norm && find_schedule(name).clips;
  choice.warmup_extra = warmup_extra.value_or(choice.warmup_extra);
  choice.vertical_sync = vertical_sync.value_or(choice.vertical_sync);
}

ScheduleAsked schedule_asked(const std::string& text, const InputPlace& place) {
  const std::vector<std::string> entries = entries_of(text);
  if (entries.size() > 1 || text == "all") {
    throw InputError(place, fmt::format("\"{0}\": expected one schedule; several are for "
                                        "`stagecraft compare --schedules {0}`",
                                        text));
  }
  return entry_asked(entries.front(), place);
}

std::vector<ScheduleAsked> schedules_asked(const std::string& list, AllSchedules all,
                                           const InputPlace& place) {
  std::vector<ScheduleAsked> asked;
  const auto add = [&](ScheduleAsked one) {
    if (std::ranges::find(asked, one.name, &ScheduleAsked::name) == asked.end()) {
      asked.push_back(std::move(one));
    }
  };
  for (const std::string& entry : entries_of(list)) {
    if (entry != "all") {
      add(entry_asked(entry, place));
      continue;
    }
    for (const std::string& name :
         all == AllSchedules::registered ? schedule_words() : schedule_names("all")) {
      add({.name = name});
    }
  }
  return asked;
}

std::vector<std::string> settings_of(const Schedule& schedule) {
  std::vector<std::string> settings;
  if (schedule.takes_warmup_extra) settings.emplace_back("warmup_extra");
  if (schedule.takes_vertical_sync) settings.emplace_back("vertical_sync");
  return settings;
}

std::vector<std::string> schedule_words() {
  std::vector<std::string> words;
  for (const Schedule& schedule : schedules()) words.emplace_back(schedule.name);
  return words;
}

std::string schedules_text() {
  std::string text;
  for (const Schedule& schedule : schedules()) {
    const std::vector<std::string> settings = settings_of(schedule);
    text += fmt::format("  {:<16} {}\n  {:<16} ({}){}\n", schedule.name, schedule.summary, "", schedule.paper,
                        settings.empty() ? "" : fmt::format("; takes {}", fmt::join(settings, ", ")));
  }
  return text;
}

}  // namespace stagecraft::cli
