#include "base/error.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/input_program.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "schedules/checker/checker.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/consecutive.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"
#include "schedules/repair/repair.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::cli {
namespace {

struct CheckOptions {
  std::string path;
  InputRequest request;
  int slots = 0;
  std::string transport = "rendezvous";
  std::string repaired_path;
  bool json = false;
};

struct Checked {
  LoweredProgram program;
  Proof proof;
  std::optional<LeastSlots> least;  ///< nothing: no number of slots works
  bool follows = false;             ///< a step may begin on a rank when that has ended the one before
};

/// Whether two of a synchronous step in a row are accepted, too.
bool may_follow(const InputProgram& input, const LoweredProgram& program, const TransportRules& rules) {
  if (!input.synchronous || program.kind != SegmentKind::train || !can_be_followed(program)) return false;
  return check(consecutive({&program, &program}), input.costs(), input.capacity(), rules).accepted();
}

std::ptrdiff_t slots_of(const LoweredProgram& program, Rank rank, const SlotInfo& channel) {
  const auto& slots = program.slots[rank.index()];
  return std::count_if(slots.begin(), slots.end(), [&](const SlotInfo& slot) {
    return slot.payload == channel.payload && slot.from == channel.from && slot.to == channel.to;
  });
}

std::size_t total_slots(const LoweredProgram& program) {
  std::size_t total = 0;
  for (const auto& slots : program.slots) total += slots.size();
  return total;
}

/// "activations 0 to 1"
std::string name_of(const SlotInfo& channel) {
  if (channel.payload == Payload::loss) return "losses";
  return fmt::format("{}s {} to {}", enum_name(channel.payload), channel.from.value, channel.to.value);
}

std::string layers_of(const InputProgram& input, StageId stage) {
  if (!input.plan) return "-";
  const StagePlan& plan = input.plan->stages[stage.index()];
  return plan.last_layer - plan.first_layer == 1
             ? std::to_string(plan.first_layer)
             : fmt::format("{}-{}", plan.first_layer, plan.last_layer - 1);
}

void print_stages(const InputProgram& input, const Checked& checked) {
  Table table({"rank", "stage", "layers", "in flight", "versions", "staleness", "receive slots"});
  Rank last;
  for (const StageProof& stage : checked.proof.stages) {
    // Slots are the rank's; where it holds several stages they stand in its first row.
    const std::size_t slots = checked.program.slots[stage.rank.index()].size();
    table.row({std::to_string(stage.rank.value), std::to_string(stage.stage.value),
               layers_of(input, stage.stage), std::to_string(stage.in_flight),
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
std::string without_rank(std::string at) {
  const std::size_t end = at.starts_with("rank ") ? at.find("] ") : std::string::npos;
  if (end != std::string::npos) at.erase(0, end + 2);
  constexpr std::string_view kWords = " of micro-batch ";
  if (const std::size_t words = at.find(kWords); words != std::string::npos)
    at.replace(words, kWords.size(), " ");
  return at;
}

void print_memory(const InputProgram& input, const Proof& proof) {
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
  if (const auto capacity = input.capacity())
    print(fmt::format("Every rank fits into the {} of a device.\n", format_bytes(*capacity)));
}

/// "rank 1 activation 0->1: 4 of 3", what a channel has and the least it can do with; only where they differ.
void print_channels(const Checked& checked) {
  const LeastSlots& least = *checked.least;
  print(fmt::format("\nReceive slots per channel: {}; the least that works is {}.\n",
                    checked.proof.slots_per_channel, least.uniform));
  if (least.channels.empty()) return;
  print(fmt::format(
      "{} slots in all; channel by channel {} {}:\n", total_slots(checked.program), least.total,
      least.exact ? "are needed" : "suffice, and none can do with fewer while the others keep theirs"));
  Table table({"rank", "<receives", "transfers", "slots", "least"});
  Rank last;
  for (const ChannelSlots& channel : least.channels) {
    table.row({channel.rank == last ? "" : std::to_string(channel.rank.value), name_of(channel.channel),
               std::to_string(channel.transfers),
               std::to_string(slots_of(checked.program, channel.rank, channel.channel)),
               std::to_string(channel.slots)});
    last = channel.rank;
  }
  print(table.text());
}

/// Under NCCL's rules (device_waits.h).
void print_device_waits(const DeviceWaits& waits) {
  print(fmt::format(
      "Waits for the device: of one before each of the {} that compute, {} never end for receives,\n"
      "{} for sends, {} for sums over replicas.{}\n\n",
      plural(waits.places, "action"), waits.receives, waits.sends, waits.sums,
      waits.safe() ? ""
                   : "\nHosts do wait, so no run goes like this: runs announce what they launch, as under "
                     "--transport nccl."));
}

/// Without announcements only hosts that never wait for their device finish.
bool is_conditional(const Proof& proof) { return proof.device_waits && !proof.device_waits->safe(); }

void print_text(const InputProgram& input, const Checked& checked, const TransportRules& rules) {
  print(headline(input) + "\n");
  print(
      fmt::format("Accepted{}: it finishes {}, computes each micro-batch once,\n"
                  "and every backward reads the weights its forward read.\n\n",
                  is_conditional(checked.proof) ? " only where no host waits for its whole device" : "",
                  describe_rules(rules)));
  if (input.synchronous && checked.program.kind == SegmentKind::train) {
    print(checked.follows ? "Steps follow each other: a rank that has ended one begins the next.\n\n"
                          : "Ranks wait for each other behind each step.\n\n");
  }
  if (checked.proof.device_waits) print_device_waits(*checked.proof.device_waits);
  print_stages(input, checked);
  if (input.has_transfers()) {
    print(fmt::format("\nTransfers in the file's own order, each with a buffer of its own: {} per channel.\n",
                      checked.proof.slots_per_channel));
  } else {
    print_channels(checked);
  }
  print_memory(input, checked.proof);
}

/// `transport`: whose rules it was judged under. `least_slots_per_channel` is null where no number works.
Json judged_json(const InputProgram& input, const Checked& checked, const std::string& transport) {
  return Json{{"file", input.path},
              {"schedule", input.program.schedule},
              {"stages", input.program.placement.stages()},
              {"ranks", input.program.placement.world()},
              {"group_sizes", input.program.group_sizes},
              {"transport", transport},
              {"accepted", checked.proof.accepted()},
              {"least_slots_per_channel", checked.least ? Json(checked.least->uniform) : Json()}};
}

Json refused_json(const InputProgram& input, const Checked& checked, const std::string& transport) {
  Json json = judged_json(input, checked, transport);
  json["findings"] = Json::array();
  for (const Finding& finding : checked.proof.findings) {
    json["findings"].push_back(
        Json{{"kind", enum_name(finding.kind)}, {"message", finding.message}, {"cycle", finding.cycle}});
  }
  return json;
}

/// What each channel has and the least it can do with.
void add_slots(Json& json, const Checked& checked) {
  json["least_slots"] = Json{{"total", checked.least->total}, {"exact", checked.least->exact}};
  json["channels"] = Json::array();
  for (const ChannelSlots& channel : checked.least->channels) {
    json["channels"].push_back(Json{{"rank", channel.rank.value},
                                    {"payload", enum_name(channel.channel.payload)},
                                    {"from", channel.channel.from.value},
                                    {"to", channel.channel.to.value},
                                    {"transfers", channel.transfers},
                                    {"slots", slots_of(checked.program, channel.rank, channel.channel)},
                                    {"least", channel.slots}});
  }
}

Json accepted_json(const InputProgram& input, const Checked& checked, const std::string& transport) {
  Json json = judged_json(input, checked, transport);
  json["steps_follow"] = checked.follows;
  json["slots_per_channel"] = checked.proof.slots_per_channel;
  json["slots"] = total_slots(checked.program);
  if (checked.least) add_slots(json, checked);
  if (const auto& waits = checked.proof.device_waits) {
    json["device_waits"] = Json{{"safe", waits->safe()},
                                {"places", waits->places},
                                {"receives", waits->receives},
                                {"sends", waits->sends},
                                {"sums", waits->sums}};
  }
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

TransportRules rules_of(const CheckOptions& options, const InputProgram& input) {
  const TransportRules rules = transport_rules(options.transport);
  if (rules.needs_sizes() && input.costs() == nullptr) {
    throw InputError(
        {input.path, ""},
        fmt::format("--transport {}: there are no costs to take message sizes from; without sizes "
                    "there is \"eager\", which buffers every message",
                    options.transport));
  }
  return rules;
}

Checked check_input(const InputProgram& input, const CheckOptions& options, const TransportRules& rules) {
  Checked checked;
  LoweringOptions lowering{.rules = rules, .costs = input.costs()};
  if (!input.has_transfers()) checked.least = least_channel_slots(input.program, lowering);
  // Where no number of slots works, those asked for are not what is wrong.
  if (checked.least) lowering.slots_per_channel = options.slots;
  try {
    checked.program = input.lowered(lowering);
  } catch (const RefusedError& error) {
    checked.proof.findings.push_back({Finding::Kind::buffers, error.what(), {}});
    return checked;
  }
  checked.proof = check(checked.program, input.costs(), input.capacity(), rules);
  checked.follows = checked.proof.accepted() && may_follow(input, checked.program, rules);
  return checked;
}

/// Puts the repaired schedule in the place of the one read, and writes it; returns what was changed.
std::vector<std::string> repair_input(InputProgram& input, const CheckOptions& options,
                                      const TransportRules& rules) {
  if (input.plan) {
    throw InputError({input.path, ""}, "--repair is for schedules people write; a plan's is generated");
  }
  Repair repaired = repair(input.program, rules);
  if (!repaired.proof.accepted()) {
    throw RefusedError(fmt::format("{}: cannot be repaired: {}\n{}", input.path, repaired.why_not,
                                   refusal(repaired.proof.findings)));
  }
  input.program = std::move(repaired.schedule);
  input.pytorch.reset();  // its transfers are made anew
  if (options.repaired_path.ends_with(".json")) {
    write_json_output(options.repaired_path, to_json(input.program), input.path);
  } else {
    write_output(options.repaired_path, to_text(input.program), input.path);
  }
  if (options.json) return repaired.changes;
  for (const std::string& change : repaired.changes) print("repaired: " + change + "\n");
  print(fmt::format("{}{} is written\n", repaired.changes.empty() ? "nothing to repair; " : "",
                    options.repaired_path));
  return repaired.changes;
}

void run(const CheckOptions& options) {
  InputProgram input = read_input(options.path, options.request);
  if (options.slots > 0 && input.has_transfers()) {
    throw InputError({input.path, ""}, "has a buffer for each transfer; --slots is for what is lowered here");
  }
  const TransportRules rules = rules_of(options, input);
  std::vector<std::string> changes;
  if (!options.repaired_path.empty()) changes = repair_input(input, options, rules);
  const Checked checked = check_input(input, options, rules);
  const bool accepted = checked.proof.accepted();
  if (options.json) {
    Json json = accepted ? accepted_json(input, checked, options.transport)
                         : refused_json(input, checked, options.transport);
    if (!options.repaired_path.empty()) json["repaired"] = changes;
    print_json(json);
  } else if (accepted) {
    print_text(input, checked, rules);
  }
  if (accepted) return;
  const bool too_few = options.slots > 0 && checked.least && options.slots < checked.least->uniform;
  throw RefusedError(fmt::format(
      "{}: {}{}", input.path, refusal(checked.proof.findings),
      too_few ? fmt::format("\n  --slots {} is the least that works", checked.least->uniform) : ""));
}

}  // namespace

void add_check(CLI::App& app) {
  constexpr const char* kProof = "The proof";
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* verb =
      app.add_subcommand("check", "prove a plan or a schedule safe, or show what is wrong with it");
  verb->add_option(
          "FILE", options->path,
          "plan.json, run.json for the plan that train would make of it, or a schedule as text, JSON or "
          "PyTorch's CSV")
      ->type_name("FILE")
      ->required();
  verb->add_option("--micro-batches", options->request.micro_batches,
                   "micro-batches per step (default: the plan's)")
      ->check(from_to(1, kMostMicroBatches))
      ->type_name("N")
      ->group(kProof);
  verb->add_option("--slots", options->slots,
                   "receive slots per channel (default: the least that works, and one)")
      ->check(from_to(1, 1'000'000))
      ->type_name("N")
      ->group(kProof);
  verb->add_option(
          "--transport", options->transport,
          "rendezvous, eager[:LIMIT[:BUFFER]] in bytes, or nccl; behind commas tagged or fifo, and what is a "
          "channel: boundary, payload or pair; nccl is fifo, and may be unannounced (default: rendezvous)")
      ->type_name("RULES")
      ->group(kProof);
  verb->add_option(
          "--repair", options->repaired_path,
          "write the schedule with its loads put right and doubles merged, and say what was changed; "
          "the order of computation stays (default: nothing is written)")
      ->type_name("FILE")
      ->group("Output");
  verb->add_flag("--json", options->json, "one JSON document instead of text")->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
