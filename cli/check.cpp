#include "cli/commands.h"
#include "cli/output.h"
#include "cli/subject.h"
#include "schedules/base/error.h"
#include "schedules/base/table.h"
#include "schedules/checker.h"
#include "schedules/lowering.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

namespace stagecraft::cli {
namespace {

struct CheckOptions {
  std::string path;
  SubjectRequest request;
  int slots = 0;
  bool json = false;
};

struct Checked {
  LoweredProgram program;
  Proof proof;
  std::optional<int> least_slots;  ///< nothing: none works
};

std::string layers_of(const Subject& subject, StageId stage) {
  if (!subject.plan) return "-";
  const StagePlan& plan = subject.plan->stages[stage.index()];
  return plan.last_layer - plan.first_layer == 1
             ? std::to_string(plan.first_layer)
             : fmt::format("{}-{}", plan.first_layer, plan.last_layer - 1);
}

void print_stages(const Subject& subject, const Checked& checked) {
  Table table({"rank", "stage", "layers", "in flight", "versions", "staleness", "receive slots"});
  Rank last;
  for (const StageProof& stage : checked.proof.stages) {
    // Slots are the rank's; where it holds several stages they stand in its first row.
    const std::size_t slots = checked.program.slots[stage.rank.index()].size();
    table.row({std::to_string(stage.rank.value), std::to_string(stage.stage.value),
               layers_of(subject, stage.stage), std::to_string(stage.in_flight),
               std::to_string(stage.versions_alive),
               stage.staleness_min == stage.staleness_max
                   ? std::to_string(stage.staleness_max)
                   : fmt::format("{} to {}", stage.staleness_min, stage.staleness_max),
               stage.rank == last ? "" : std::to_string(slots)});
    last = stage.rank;
  }
  print(table.text());
}

/// The action alone: its rank stands in the row already.
std::string without_rank(const std::string& at) {
  const std::size_t end = at.starts_with("rank ") ? at.find("] ") : std::string::npos;
  return end == std::string::npos ? at : at.substr(end + 2);
}

void print_memory(const Subject& subject, const Proof& proof) {
  if (proof.memory.empty()) {
    print("\nNo memory table: there are no costs to take bytes from.\n");
    return;
  }
  print(
      "\nPeak memory of each rank, from requested tensor bytes (contexts and fragmentation come on top):\n");
  Table table({"rank", "peak", "weights", "older", "gradients", "optimizer", "kept", "transfers", "transient",
               "<reached at"});
  for (const MemoryProof& rank : proof.memory) {
    table.row({std::to_string(rank.rank.value), format_bytes(rank.peak), format_bytes(rank.weights),
               format_bytes(rank.versions), format_bytes(rank.gradients), format_bytes(rank.optimizer_state),
               format_bytes(rank.kept), format_bytes(rank.transfers), format_bytes(rank.transient),
               without_rank(rank.at)});
  }
  print(table.text());
  if (const auto capacity = subject.capacity())
    print(fmt::format("Every rank fits into the {} of a device.\n", format_bytes(*capacity)));
}

void print_text(const Subject& subject, const Checked& checked) {
  print(headline(subject) + "\n");
  print(
      "Accepted: it finishes even if every send blocks until it is received, computes each micro-batch "
      "once,\n"
      "and every backward reads the weights its forward read.\n\n");
  print_stages(subject, checked);
  if (subject.has_transfers()) {
    print(fmt::format("\nTransfers in the file's own order, each with a buffer of its own: {} a channel.\n",
                      checked.proof.slots_per_channel));
  } else {
    print(fmt::format("\nReceive slots a channel: {}; the least that works is {}.\n",
                      checked.proof.slots_per_channel, *checked.least_slots));
  }
  print_memory(subject, checked.proof);
}

/// `least_slots_per_channel` is null where no number works.
Json judged_json(const Subject& subject, const Checked& checked) {
  return Json{{"file", subject.path},
              {"schedule", subject.program.schedule},
              {"stages", subject.program.placement.stages()},
              {"ranks", subject.program.placement.world()},
              {"group_sizes", subject.program.group_sizes},
              {"accepted", checked.proof.accepted()},
              {"least_slots_per_channel", json::write(checked.least_slots)}};
}

Json refused_json(const Subject& subject, const Checked& checked) {
  Json json = judged_json(subject, checked);
  json["findings"] = Json::array();
  for (const Finding& finding : checked.proof.findings) {
    json["findings"].push_back(
        Json{{"kind", enum_name(finding.kind)}, {"message", finding.message}, {"cycle", finding.cycle}});
  }
  return json;
}

Json accepted_json(const Subject& subject, const Checked& checked) {
  Json json = judged_json(subject, checked);
  json["slots_per_channel"] = checked.proof.slots_per_channel;
  json["proof"] = Json::array();
  for (const StageProof& stage : checked.proof.stages) {
    json["proof"].push_back(Json{{"rank", stage.rank.value},
                                 {"stage", stage.stage.value},
                                 {"in_flight", stage.in_flight},
                                 {"versions", stage.versions_alive},
                                 {"staleness_min", stage.staleness_min},
                                 {"staleness_max", stage.staleness_max},
                                 {"rank_slots", checked.program.slots[stage.rank.index()].size()}});
  }
  json["memory"] = Json::array();
  for (const MemoryProof& rank : checked.proof.memory) {
    json["memory"].push_back(Json{{"rank", rank.rank.value},
                                  {"peak_bytes", rank.peak.value},
                                  {"at", rank.at},
                                  {"weights_bytes", rank.weights.value},
                                  {"older_versions_bytes", rank.versions.value},
                                  {"gradients_bytes", rank.gradients.value},
                                  {"optimizer_bytes", rank.optimizer_state.value},
                                  {"kept_bytes", rank.kept.value},
                                  {"transfers_bytes", rank.transfers.value},
                                  {"transient_bytes", rank.transient.value}});
  }
  return json;
}

Checked check_subject(const Subject& subject, const CheckOptions& options) {
  Checked checked;
  if (!subject.has_transfers()) checked.least_slots = least_slots(subject.program);
  try {
    // Where no number of slots works, those asked for are not what is wrong.
    checked.program = subject.lowered({.slots_per_channel = checked.least_slots ? options.slots : 0});
  } catch (const RefusedError& error) {
    checked.proof.findings.push_back({Finding::Kind::buffers, error.what(), {}});
    return checked;
  }
  checked.proof = check(checked.program, subject.costs(), subject.capacity());
  return checked;
}

void run(const CheckOptions& options) {
  const Subject subject = read_subject(options.path, options.request);
  if (options.slots > 0 && subject.has_transfers()) {
    throw InputError({subject.path, ""},
                     "has a buffer for each transfer; --slots is for what is lowered here");
  }
  const Checked checked = check_subject(subject, options);
  const bool accepted = checked.proof.accepted();
  if (options.json) {
    print_json(accepted ? accepted_json(subject, checked) : refused_json(subject, checked));
  } else if (accepted) {
    print_text(subject, checked);
  }
  if (accepted) return;
  const bool too_few = options.slots > 0 && checked.least_slots && options.slots < *checked.least_slots;
  throw RefusedError(fmt::format(
      "{}: {}{}", subject.path, refusal(checked.proof.findings),
      too_few ? fmt::format("\n  --slots {} is the least that works", *checked.least_slots) : ""));
}

}  // namespace

void add_check(CLI::App& app) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* verb =
      app.add_subcommand("check", "prove a plan or a schedule safe, or show what is wrong with it");
  verb->add_option("FILE", options->path, "plan.json, or a schedule as text, JSON or PyTorch's CSV")
      ->required();
  verb->add_option("--micro-batches", options->request.micro_batches, "of a step, instead of the plan's")
      ->check(CLI::Range(1, kMostMicroBatches))
      ->type_name("N");
  verb->add_option("--slots", options->slots,
                   "receive slots a channel; default: the least that works, and one")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("K");
  verb->add_flag("--json", options->json, "one JSON document instead of text");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
