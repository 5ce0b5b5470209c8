#include "cli/explain_text.h"

#include "base/statistics.h"
#include "base/table.h"
#include "base/text.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace stagecraft::cli {
namespace {

/// Less of a change than this is none.
constexpr double kNothing = 5e-6;

/// A change of the step: "+2.1 %", "-0.3 %", "the same step"; "-" from a step that takes no time.
std::string change_text(double change) {
  if (!std::isfinite(change)) return "-";
  if (std::abs(change) < kNothing) return "the same step";
  return fmt::format("{:+.{}f} %", change * 100, std::abs(change) < 5e-4 ? 3 : 1);
}

/// Decimal, as links are sold.
std::string rate(double bytes_per_second) { return format_count(bytes_per_second) + "B/s"; }

/// "between devices", "between groups of 4 devices".
std::string level_text(const std::vector<int>& counts, int level) {
  int inside = 1;
  for (int l = 0; l < level; ++l) inside *= counts[static_cast<std::size_t>(l)];
  return inside == 1 ? "between devices" : fmt::format("between groups of {} devices", inside);
}

std::vector<int> counts_of(const Cluster& cluster) {
  std::vector<int> counts;
  for (const NetworkLevel& level : cluster.levels) counts.push_back(level.count);
  return counts;
}

std::string stages_text(const std::vector<StageId>& stages) {
  std::vector<std::int32_t> numbers;
  for (const StageId stage : stages) numbers.push_back(stage.value);
  return fmt::format("stage{} {}", numbers.size() == 1 ? "" : "s", fmt::join(numbers, ", "));
}

std::string grown_text(const MovedCut& cut, const CutExplanation& now) {
  if (!cut.grown || cut.change <= kNothing) return "";
  const ChainPart& part = *cut.grown;
  switch (part.kind) {
    case ChainPart::Kind::compute:
      return fmt::format(": stage {} {}", part.stage->value,
                         cut.busiest ? "is the busiest then"
                                     : "counts " + format_duration(part.seconds) +
                                           " more in the chain that the step waits for");
    case ChainPart::Kind::optimizer:
      return fmt::format(": stage {}'s optimizer takes longer", part.stage->value);
    case ChainPart::Kind::link:
      if (part.stage == now.stage && cut.crossing > now.crossing) {
        return fmt::format(": {} would cross instead of {}", format_bytes(cut.crossing),
                           format_bytes(now.crossing));
      }
      return fmt::format(": the step waits {} more for the link into stage {}", format_duration(part.seconds),
                         part.stage->value);
    case ChainPart::Kind::reduction:
      return fmt::format(": stage {}'s all-reduce takes longer", part.stage->value);
    case ChainPart::Kind::agreement:
      return ": the agreement on the norm counts more";
    case ChainPart::Kind::tie:
      return ": the sum of a tied weight takes longer";
    case ChainPart::Kind::link_queue:
      return ": transfers queue for shared cards";
  }
  return "";
}

std::string moved_text(const MovedCut& cut, const CutExplanation& now) {
  if (!cut.misses) return change_text(cut.change) + grown_text(cut, now);
  const MemoryMiss& miss = *cut.misses;
  return fmt::format("does not fit: {} would need {}, {} more than a device has ({} if it did)",
                     stages_text(miss.stages), format_bytes(miss.needs), format_bytes(miss.needs - miss.has),
                     change_text(cut.change));
}

std::string cuts_text(const Explanation& explained, const Measurement& measurement) {
  if (explained.cuts.empty()) return "";
  std::string text =
      "\nWhy the cuts are where they are: the step with one cut moved by a layer, all else as it is\n";
  for (const CutExplanation& cut : explained.cuts) {
    text += fmt::format("  cut before layer {} ({}), where stage {} begins; {} cross\n", cut.layer,
                        measurement.layers[static_cast<std::size_t>(cut.layer)].name, cut.stage.value,
                        format_bytes(cut.crossing));
    if (!cut.earlier && !cut.later) {
      text += "    has nowhere to move: a stage would be left without a layer, or with the loss alone\n";
      continue;
    }
    const auto line = [&](const char* where, const std::optional<MovedCut>& moved, int emptied) {
      text += fmt::format(
          "    {:<15}  {}\n", where,
          moved ? moved_text(*moved, cut) : fmt::format("leaves stage {} without a layer", emptied));
    };
    line("a layer earlier", cut.earlier, cut.stage.value - 1);
    line("a layer later", cut.later, cut.stage.value);
  }
  if (explained.cuts_left_out > 0) {
    text += fmt::format("  {} more cuts, between stages with less to do: not looked at within the budget\n",
                        explained.cuts_left_out);
  }
  return text;
}

std::string lone_text(const Explanation& explained, const Measurement& measurement) {
  if (explained.lone_layers.empty()) return "";
  std::string text = "\nWhat layers cost that no other is like, per micro-batch\n";
  Table table({"<layer", "F + B ms", "of all compute", "parameters"});
  for (const LoneLayer& layer : explained.lone_layers) {
    table.row(
        {fmt::format("{} {}", layer.layer, measurement.layers[static_cast<std::size_t>(layer.layer)].name),
         layer.compute, format_percent(layer.share), format_bytes(layer.parameters)});
  }
  return text + table.text();
}

struct KindName {
  ChainPart::Kind kind;
  const char* name;
};
constexpr KindName kKinds[] = {{ChainPart::Kind::compute, "compute"},
                               {ChainPart::Kind::optimizer, "optimizer"},
                               {ChainPart::Kind::link, "links"},
                               {ChainPart::Kind::reduction, "all-reduce"},
                               {ChainPart::Kind::agreement, "norm agreement"},
                               {ChainPart::Kind::link_queue, "queues for cards"},
                               {ChainPart::Kind::tie, "sum of a tied weight"}};

std::string part_text(const ChainPart& part, Seconds whole) {
  if (!part.stage) return "";
  const char* of = part.kind == ChainPart::Kind::link ? "into stage" : "stage";
  return fmt::format("{} {} {}", of, part.stage->value, format_percent(part.seconds / whole));
}

std::string chain_text(const Explanation& explained, bool synchronous) {
  Seconds whole;
  for (const ChainPart& part : explained.chain) whole += part.seconds;
  if (whole <= Seconds{}) return "";
  std::string text =
      fmt::format("\nWhere the step goes: its longest chain of things that wait for one another{}\n",
                  synchronous ? "" : " (of a whole segment, with fill and drain, shared out over its steps)");
  Table table({"<", "ms", "share", "<"});
  for (const auto& [kind, name] : kKinds) {
    constexpr std::size_t kMost = 4;
    Seconds sum;
    std::vector<std::string> largest;
    std::size_t count = 0;
    for (const ChainPart& part : explained.chain) {
      if (part.kind != kind) continue;
      sum += part.seconds;
      if (++count <= kMost && part.stage) largest.push_back(part_text(part, whole));
    }
    if (count == 0) continue;
    if (count > kMost) largest.emplace_back("...");
    table.row({name, sum, format_percent(sum / whole), fmt::format("{}", fmt::join(largest, ", "))});
  }
  text += table.text();
  if (explained.agreement) {
    text += fmt::format(
        "  {} of the step is waiting for each other, because all ranks agree on the gradient's norm\n"
        "  (\"gradient_norm\": false in the run's config, where nothing is clipped or skipped, does "
        "without)\n",
        format_duration(*explained.agreement));
  }
  return text;
}

std::string rank_text(const Explanation& explained) {
  if (!explained.rank) return "";
  const RankTime& time = *explained.rank;
  const Seconds whole = time.busy + time.lost.total();
  if (whole <= Seconds{}) return "";
  std::string text = "\nMeanwhile the mean rank\n";
  Table table({"<", "ms", "share"});
  const auto row = [&](const char* name, Seconds seconds) {
    if (seconds > Seconds{}) table.row({name, seconds, format_percent(seconds / whole)});
  };
  row("computes", time.busy);
  row("waits as the schedule's order has it", time.lost.dependency);
  row("waits because ranks have unequal work", time.lost.imbalance);
  row("waits for transfers to come", time.lost.exposed_transfer);
  row("waits for its own sends to end", time.lost.blocked_send);
  row("waits for a free slot", time.lost.memory);
  row("waits in collectives", time.lost.barrier);
  return text + table.text();
}

std::string tenths_text(const Explanation& explained, const std::vector<int>& counts) {
  if (explained.tenths.empty()) return "";
  std::string text = "\nA tenth faster, the plan as it is\n";
  Table table({"<", "step"});
  for (const Sensitivity& tenth : explained.tenths) {
    table.row({tenth.stage ? fmt::format("compute of stage {}", tenth.stage->value)
                           : "links " + level_text(counts, *tenth.level),
               change_text(tenth.change)});
  }
  return text + table.text();
}

int devices_of(const std::vector<int>& counts) {
  std::int64_t devices = 1;
  for (const int count : counts) devices *= count;
  return static_cast<int>(devices);
}

/// "5 x 4", the outermost level first, as people speak of machines.
std::string shape(const std::vector<int>& counts) {
  std::vector<int> outermost_first(counts.rbegin(), counts.rend());
  return counts.size() == 1 ? "" : fmt::format(" ({})", fmt::join(outermost_first, " x "));
}

std::string what_text(const WhatIf& answer, const Cluster& cluster) {
  const std::vector<int> counts = counts_of(cluster);
  const int now = devices_of(counts), then = devices_of(answer.counts);
  switch (answer.kind) {
    case WhatIf::Kind::more_devices:
      return fmt::format("{} device{} more{}", then - now, then - now == 1 ? "" : "s", shape(answer.counts));
    case WhatIf::Kind::fewer_devices:
      return fmt::format("{} device{} fewer{}", now - then, now - then == 1 ? "" : "s", shape(answer.counts));
    case WhatIf::Kind::more_memory:
      return fmt::format("{} per device", format_bytes(*answer.memory));
    case WhatIf::Kind::no_recompute:
      return fmt::format("{} per device, nothing recomputed", format_bytes(*answer.memory));
    case WhatIf::Kind::chosen_recompute:
      return "--recompute auto";
    case WhatIf::Kind::faster_links: {
      const Link& link = cluster.levels[static_cast<std::size_t>(*answer.level)].link;
      return fmt::format("links {} twice as fast ({})", level_text(counts, *answer.level),
                         rate(link.bytes_per_second * 2));
    }
    case WhatIf::Kind::more_micro_batches:
    case WhatIf::Kind::fewer_micro_batches:
      return fmt::format("{} of {}", plural(answer.micro_batches, "micro-batch"), answer.micro_batch_size);
  }
  return "";
}

std::string first_line(const std::string& text) {
  const std::size_t end = text.find('\n');
  return end == std::string::npos ? text : text.substr(0, end) + " ...";
}

std::string what_if_text(const Explanation& explained, const Cluster& cluster) {
  std::string text = "\nWhat else would bring, each planned again\n";
  Table table({"<with", "step ms", "change", "as it is", "<plan"});
  for (const WhatIf& answer : explained.what_if) {
    const auto as_it_is = [&] {
      return change_text(relative_change(explained.step.value, answer.as_it_is->value));
    };
    table.row({what_text(answer, cluster), answer.step, answer.step ? change_text(answer.change) : "-",
               answer.as_it_is ? as_it_is() : "-",
               !answer.step          ? first_line(answer.refused)
               : answer.plan.empty() ? "this one"
                                     : answer.plan});
  }
  return text + table.text() +
         "  as it is: this plan, not planned again. Each had a part of the budget: there may be better "
         "ones.\n";
}

}  // namespace

std::string explain_text(const Explanation& explained, const Plan& plan, const Measurement& measurement,
                         const Cluster& cluster) {
  return cuts_text(explained, measurement) + lone_text(explained, measurement) +
         chain_text(explained, find_schedule(plan.schedule.name).synchronous) + rank_text(explained) +
         tenths_text(explained, counts_of(cluster)) + what_if_text(explained, cluster);
}

}  // namespace stagecraft::cli
