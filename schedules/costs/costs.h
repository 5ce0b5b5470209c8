#pragma once

// What the simulator and the memory proof need to know about a plan: costs per stage and the network between
// ranks. partitioner/ makes these from a profile, a cluster and a plan.

#include "base/describe.h"
#include "base/ids.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft {

/// Bounds of what is read from files, far beyond anything real: nothing that is added, divided or squared
/// within them becomes infinite.
inline constexpr double kMostMilliseconds = 1e12;
inline constexpr json::Range kDuration = json::between(0, kMostMilliseconds);
inline constexpr double kLeastSpeed = 1e-6;
/// Of one stage, in programs that are not absurdly long (there the checker takes less): their sums fit 64
/// bits.
inline constexpr Bytes kMostActivationBytes{std::int64_t{1} << 45U};
inline constexpr Bytes kMostWeightBytes{std::int64_t{1} << 46U};

/// How much a stage's times vary: interquartile ranges, as a profile has them.
struct StageSpread {
  Seconds forward, backward_input, backward_weight, step;
};

void describe(auto& v, StageSpread& s) {
  v.optional("forward_ms", s.forward, "interquartile range", kDuration);
  v.optional("backward_input_ms", s.backward_input, "likewise", kDuration);
  v.optional("backward_weight_ms", s.backward_weight, "likewise", kDuration);
  v.optional("step_ms", s.step, "likewise", kDuration);
}

/// Costs of one stage on one rank, for one full micro-batch. A shorter micro-batch is priced as a full one.
struct StageCosts {
  Seconds forward, backward_input, backward_weight, step;
  Bytes parameters;  ///< gradients and what replicas add up are as large
  Bytes compute_copy{}, buffers, optimizer_state;
  Bytes input;   ///< stage 0: the loaded data
  Bytes read{};  ///< one at a time
  Bytes output;  ///< last stage: 0
  Bytes targets, fields{};
  Bytes kept_for_input;   ///< without the input slot and without the output
  Bytes kept_for_weight;  ///< of all that backward needs
  bool output_kept = false;
  /// Transient bytes above what is live before, at the worst moment of forward (kept and output included).
  Bytes forward_peak;
  std::optional<Bytes> unkept_forward_peak{};  ///< likewise of a forward that keeps nothing
  Bytes backward_peak;  ///< likewise for a whole backward (the gradient sent upstream included)
  /// Likewise for each half of a split one, the input half above what is live before it, the weight half
  /// above what is kept for it. Absent: backward_peak.
  std::optional<Bytes> backward_input_peak, backward_weight_peak;
  std::optional<Bytes> step_peak{};   ///< likewise of an update; absent: none
  std::optional<StageSpread> spread;  ///< absent: not measured

  /// One version of what layers read of the weights.
  [[nodiscard]] Bytes version() const { return compute_copy > Bytes{} ? compute_copy : parameters; }
  /// The newest version, and what steps update.
  [[nodiscard]] Bytes weights() const { return parameters + compute_copy; }
  [[nodiscard]] Bytes unkept_peak() const { return unkept_forward_peak.value_or(forward_peak); }
  [[nodiscard]] Bytes input_half_peak() const { return backward_input_peak.value_or(backward_peak); }
  [[nodiscard]] Bytes weight_half_peak() const { return backward_weight_peak.value_or(backward_peak); }
};

void describe(auto& v, StageCosts& c) {
  v.required("forward_ms", c.forward, "forward of one micro-batch", kDuration);
  v.required("backward_input_ms", c.backward_input, "gradient of the stage's input", kDuration);
  v.required("backward_weight_ms", c.backward_weight, "gradient of the stage's weights", kDuration);
  v.optional("step_ms", c.step, "optimizer update", kDuration);
  v.optional("parameter_bytes", c.parameters, "the weights that steps update");
  v.optional("compute_copy_bytes", c.compute_copy,
             "mixed precision: the copy of the weights that layers read; 0: they are read themselves");
  v.optional("buffer_bytes", c.buffers, "running statistics and the like");
  v.optional("optimizer_bytes", c.optimizer_state, "optimizer state");
  v.optional("input_bytes", c.input, "boundary received from the previous stage");
  v.optional("read_bytes", c.read,
             "stage 0: of the data as it is read, where it is then made into another type");
  v.optional("output_bytes", c.output, "boundary sent to the next stage");
  v.optional("targets_bytes", c.targets, "last stage: what is loaded for the loss");
  v.optional("field_bytes", c.fields,
             "fields of the batch that layers read besides the input, such as masks");
  v.optional("kept_for_input_bytes", c.kept_for_input,
             "kept from forward to the input gradient, input and output apart");
  v.optional("kept_for_weight_bytes", c.kept_for_weight, "kept on from input gradient to weight gradient");
  v.optional("output_kept", c.output_kept, "the output is also kept for backward");
  v.optional("forward_peak_bytes", c.forward_peak, "transient peak of forward above what is live before");
  v.optional("unkept_forward_peak_bytes", c.unkept_forward_peak,
             "the same of a forward that keeps nothing, as one does that is recomputed; absent: "
             "forward_peak_bytes");
  v.optional("backward_peak_bytes", c.backward_peak, "transient peak of backward above what is live before");
  v.optional("backward_input_peak_bytes", c.backward_input_peak,
             "the same of a split backward's input half; absent: backward_peak_bytes");
  v.optional("backward_weight_peak_bytes", c.backward_weight_peak,
             "the same of its weight half; absent: backward_peak_bytes");
  v.optional("step_peak_bytes", c.step_peak,
             "transient peak of an optimizer update above what is live before; absent: 0");
  v.optional("spread", c.spread, "how much the times vary; absent: not measured");
}

/// One direction of a connection: a transfer of n bytes takes latency + n / bytes_per_second.
struct Link {
  Seconds latency;
  double bytes_per_second = 1e9;

  [[nodiscard]] Seconds time(Bytes bytes) const {
    return latency + Seconds{static_cast<double>(bytes.value) / bytes_per_second};
  }
};

void describe(auto& v, Link& link) {
  v.required("latency_ms", link.latency, "one-way time of an empty message, ms", kDuration);
  v.required("bytes_per_second", link.bytes_per_second, "bandwidth of one direction", json::at_least(1));
}

/// Who has a level's link for himself: every pair of ranks, or all ranks under one child of the level
/// together, like the devices of a machine that has one network interface.
enum class SharedBy : std::uint8_t { pair, child };

template <>
inline constexpr std::array enum_names<SharedBy>{"pair", "child"};

/// Ranks in a hierarchy, innermost level first: {devices of a machine, machines of a rack, ...}. Rank r sits
/// at the mixed-radix coordinates of r. Two ranks talk over the link of the innermost level that holds both.
struct NetworkLevel {
  int count = 1;
  Link link;
  SharedBy shared_by = SharedBy::pair;
};

void describe(auto& v, NetworkLevel& level) {
  v.required("count", level.count, "children of one node of this level", json::at_least(1));
  v.required("link", level.link, "between those children");
  v.optional("shared_by", level.shared_by,
             "pair: each two ranks have such a link; child: all ranks under one child share one, out and in");
}

struct Network {
  /// What a transfer between two ranks passes: the link, and where that is shared, by which children of which
  /// level. A child is numbered among all of its level.
  struct Path {
    Link link;
    std::size_t level = 0;
    std::int64_t from = 0, to = 0;  ///< children
    bool shared = false;
  };

  std::vector<NetworkLevel> levels;
  /// Throws InputError when the network has no place for one of the ranks.
  [[nodiscard]] Path path(Rank a, Rank b) const;
  [[nodiscard]] Link between(Rank a, Rank b) const { return path(a, b).link; }
};

/// What goes directly between two stages that are no neighbours, its gradient back as well (ProgramHeader::skips).
struct SkipCosts {
  StageId from, to;
  Bytes bytes;
};

void describe(auto& v, SkipCosts& s) {
  v.required("from", s.from, "the stage that makes it");
  v.required("to", s.to, "the stage that reads it");
  v.required("bytes", s.bytes, "of one message, an activation or its gradient");
}

struct CostTable {
  std::vector<StageCosts> stages;
  Network network;
  std::vector<double> speed;  ///< per rank, compute times are divided by it; empty: all 1
  Bytes loss{16};             ///< payload of a loss report
  /// Of each tied weight (ProgramHeader::ties), as one layer holds it; stages count each of their copies
  /// among their parameters. Empty: their sums take neither time nor memory.
  std::vector<Bytes> ties{};
  /// What is not here takes nothing.
  std::vector<SkipCosts> skips{};

  [[nodiscard]] Bytes skip(StageId from, StageId to) const {
    for (const SkipCosts& skip : skips) {
      if (skip.from == from && skip.to == to) return skip.bytes;
    }
    return {};
  }
  [[nodiscard]] Bytes tied(TieId tie) const { return ties.empty() ? Bytes{} : ties[tie.index()]; }
  [[nodiscard]] double speed_of(Rank rank) const { return speed.empty() ? 1.0 : speed[rank.index()]; }
};

void describe(auto& v, Network& n) { v.required("levels", n.levels, "innermost level first"); }

void describe(auto& v, CostTable& c) {
  v.required("stages", c.stages, "costs per stage", json::non_empty());
  v.required("network", c.network, "links between ranks");
  v.optional("speed", c.speed, "relative speed per rank; empty: all 1");
  v.optional("loss_bytes", c.loss, "payload of a loss report",
             json::between(0, static_cast<double>(kMostActivationBytes.value)));
  v.optional("tie_bytes", c.ties,
             "of each tied weight, as one layer holds it; empty: their sums take nothing");
  v.optional("skips", c.skips,
             "what goes directly between stages that are no neighbours; input_bytes and output_bytes are "
             "without it");
}

/// What a schedule is drawn with where there are no costs: forward, input gradient and weight gradient take 1
/// ms each on every stage; all else takes no time, and nothing any memory.
[[nodiscard]] CostTable unit_costs(int stages, int ranks);

}  // namespace stagecraft
