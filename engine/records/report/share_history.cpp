#include "engine/records/report/share_history.h"

#include "base/error.h"
#include "base/files.h"
#include "schedules/pictures/event_styles.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace stagecraft {
namespace {

constexpr std::size_t kStyles = pictures::kLooks + 1;  // and idle
constexpr std::int64_t kWidest = std::int64_t{1} << 40;
constexpr double kLongestStepMs = 1e12;  // no step takes 30 years

void merge(ShareHistory::Entry& into, const ShareHistory::Entry& other) {
  into.ms.resize(kStyles);
  into.samples += other.samples;
  for (std::size_t i = 0; i < kStyles; ++i) into.ms[i] += other.ms[i];
}

/// As files name them: those of another version may have others.
Json style_names() {
  Json names = Json::array();
  for (std::size_t i = 0; i < pictures::kLooks; ++i) {
    names.push_back(pictures::style_of(static_cast<pictures::EventStyle>(i)).label);
  }
  return names;
}

double rounded(double ms) { return std::round(ms * 1e3) / 1e3; }

}  // namespace

void ShareHistory::add(const std::vector<Event>& events) {
  struct Step {
    Seconds begin, end;
    std::vector<double> ms = std::vector<double>(kStyles);
  };
  std::map<std::int64_t, Step> steps;
  for (const Event& event : events) {
    if (event.lane != Event::Lane::compute) continue;
    const auto [found, fresh] = steps.try_emplace(event.step, Step{event.begin, event.end});
    Step& step = found->second;
    step.begin = std::min(step.begin, event.begin);
    step.end = std::max(step.end, event.end);
    step.ms[static_cast<std::size_t>(pictures::style_of(event))] += (event.end - event.begin).value * 1e3;
  }
  if (steps.empty()) return;
  Entry entry{1, std::vector<double>(kStyles)};
  for (auto& [number, step] : steps) {
    const double known = std::accumulate(step.ms.begin(), step.ms.end(), 0.0);
    step.ms.back() = std::max(0.0, (step.end - step.begin).value * 1e3 - known);
    for (std::size_t i = 0; i < kStyles; ++i) entry.ms[i] += step.ms[i] / static_cast<double>(steps.size());
  }
  merge(entries_[steps.rbegin()->first / width_], entry);
  while (entries_.size() > kMost) widen(2 * width_);
}

void ShareHistory::forget_from(std::int64_t step) {
  entries_.erase(entries_.lower_bound((step + width_ - 1) / width_), entries_.end());
}

void ShareHistory::widen(std::int64_t width) {
  if (width <= width_) return;
  std::map<std::int64_t, Entry> wider;
  for (const auto& [at, entry] : entries_) merge(wider[at / (width / width_)], entry);
  entries_ = std::move(wider);
  width_ = width;
}

Json ShareHistory::json() const {
  Json entries = Json::array();
  for (const auto& [at, entry] : entries_) {
    Json row = Json::array({at, entry.samples});
    for (const double ms : entry.ms) row.push_back(rounded(ms));
    entries.push_back(std::move(row));
  }
  return {{"styles", style_names()}, {"width", width_}, {"entries", std::move(entries)}};
}

ShareHistory ShareHistory::from(const Json& json, const std::string& file) try {
  const auto require = [&](bool holds) {
    if (!holds) throw InputError({file, ""}, "has figures that no rank has");
  };
  ShareHistory history;
  history.width_ = json.at("width").get<std::int64_t>();
  require(history.width_ >= 1 && history.width_ <= kWidest &&
          std::has_single_bit(static_cast<std::uint64_t>(history.width_)));
  if (json.at("styles") != style_names()) return {};  // another version's
  for (const Json& row : json.at("entries")) {
    require(row.is_array() && row.size() == kStyles + 2 && history.entries_.size() < kMost);
    Entry entry{row[1].get<int>(), {}};
    require(entry.samples >= 1 && row[0].get<std::int64_t>() >= 0);
    for (std::size_t i = 0; i < kStyles; ++i) {
      entry.ms.push_back(row[i + 2].get<double>());
      require(entry.ms.back() >= 0 && entry.ms.back() <= kLongestStepMs * entry.samples);
    }
    require(history.entries_.emplace(row[0].get<std::int64_t>(), std::move(entry)).second);
  }
  return history;
} catch (const Json::exception&) {
  throw InputError({file, ""}, "is no history of a rank's time");
}

Json shares_over_time(const RunPaths& paths, int world, std::size_t most,
                      std::vector<std::string>& left_out) {
  std::map<Rank, ShareHistory> ranks;
  if (!is_there(paths.shares())) return nullptr;  // of a version that wrote none, or of a run that begins
  std::int64_t width = 1;
  for (Rank rank{0}; rank.value < world; ++rank.value) {
    const std::string path = paths.shares(rank);
    try {
      if (!is_there(path)) throw InputError({path, ""}, "is not there");
      width = std::max(width, (ranks[rank] = ShareHistory::from(json::parse_file(path), path)).width());
    } catch (const InputError& error) {
      ranks.erase(rank);
      left_out.push_back(
          fmt::format("the time of rank {} over the whole run is left out: {}", rank.value, error.what()));
    }
  }
  if (ranks.empty()) return nullptr;
  std::vector<std::int64_t> common;
  for (;; width *= 2) {
    common.clear();
    for (auto& [rank, history] : ranks) history.widen(width);
    for (const auto& [at, entry] : ranks.begin()->second.entries()) {
      const bool all = std::ranges::all_of(
          ranks, [at = at](const auto& one) { return one.second.entries().contains(at); });
      if (all) common.push_back(at);
    }
    if (common.size() * ranks.size() <= std::max(most, ranks.size()) || width >= kWidest) break;
  }
  if (common.empty()) return nullptr;
  Json steps = Json::array(), windows = Json::array(), rows = Json::array();
  for (const std::int64_t at : common) {
    double longest = 0;
    Json row = Json::array();
    for (Rank rank{0}; rank.value < world; ++rank.value) {
      Json parts = Json::array();
      const auto known = ranks.find(rank);
      if (known == ranks.end()) {
        row.push_back(std::vector<double>(kStyles));
        continue;
      }
      const ShareHistory::Entry& entry = known->second.entries().at(at);
      for (const double ms : entry.ms) parts.push_back(rounded(ms / entry.samples));
      longest = std::max(longest, std::accumulate(entry.ms.begin(), entry.ms.end(), 0.0) / entry.samples);
      row.push_back(std::move(parts));
    }
    steps.push_back((at + 1) * width);
    windows.push_back(rounded(longest));
    rows.push_back(std::move(row));
  }
  return {{"steps", std::move(steps)}, {"window_ms", std::move(windows)}, {"ms", std::move(rows)}};
}

}  // namespace stagecraft
