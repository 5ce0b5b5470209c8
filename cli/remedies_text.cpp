#include "cli/remedies_text.h"

#include "base/table.h"
#include "base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft::cli {
namespace {

std::string what_text(const Remedy& remedy) {
  const PlanRequest& request = remedy.request;
  switch (remedy.kind) {
    case Remedy::Kind::schedule:
      return fmt::format("--schedule {}", request.schedule.name);
    case Remedy::Kind::recompute:
      return "--recompute auto";
    case Remedy::Kind::smaller_batches:
      return fmt::format("--micro-batch-size {} --micro-batches {}", request.micro_batch_size,
                         request.micro_batches);
    case Remedy::Kind::more_devices: {
      std::vector<int> counts;
      for (const NetworkLevel& level : remedy.cluster.levels) counts.push_back(level.count);
      std::reverse(counts.begin(), counts.end());
      return fmt::format("{}{}", plural(remedy.cluster.devices(), "device"),
                         counts.size() == 1 ? "" : fmt::format(" ({})", fmt::join(counts, " x ")));
    }
    case Remedy::Kind::more_memory:
      return fmt::format("\"memory_bytes\": {} ({})", remedy.cluster.memory->value,
                         format_bytes(*remedy.cluster.memory));
  }
  return "";
}

}  // namespace

std::string remedies_text(const Profile& profile, const Cluster& cluster,
                          const std::vector<PlanRequest>& requests) {
  const std::vector<Remedy> found = remedies(profile, cluster, requests);
  if (found.empty()) return "";
  std::string text = "\nWhat would fit, each alone:";
  for (const Remedy& remedy : found) {
    const Bytes usable = *remedy.cluster.usable_memory();
    const auto [needs, has] = format_bytes_apart(remedy.needs, usable);
    text += fmt::format("\n  {}: {}{} per device", what_text(remedy), needs,
                        remedy.needs == usable ? "" : " of " + has);
    if (requests.size() == 1 && requests.front().schedule.name == remedy.request.schedule.name) continue;
    text += fmt::format(", with {} and {} of {}", remedy.request.schedule.name,
                        plural(remedy.request.micro_batches, "micro-batch"), remedy.request.micro_batch_size);
  }
  return text;
}

}  // namespace stagecraft::cli
