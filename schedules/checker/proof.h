#pragma once

// What a proof says: findings that refuse a program, or what was proved of its stages and memory.

#include "base/describe.h"
#include "base/ids.h"
#include "schedules/rules/device_waits.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Why a program is refused: one sentence, and where it helps the actions involved.
struct Finding {
  enum class Kind : std::uint8_t { completeness, matching, deadlock, versions, buffers, memory };
  Kind kind;
  std::string message;
  /// A deadlock's shortest cycle, in waiting order: "rank 0 waits at [12] start send ... for rank 1 to pass
  /// [9] post receive ...", "rank 1 waits at [7] start send ... for rank 0 to pass ...", one line per rank.
  std::vector<std::string> cycle;
};

template <>
inline constexpr std::array enum_names<Finding::Kind>{"completeness", "matching", "deadlock",
                                                      "versions",     "buffers",  "memory"};

/// What was proved of one (rank, stage).
struct StageProof {
  StageId stage;
  Rank rank;
  /// Most micro-batches with forward done and backward (its input part) not; 0 in validation.
  int in_flight = 0;
  int versions_alive = 0;  ///< most versions of the weights needed at once, the current one included
  /// Over the micro-batches: the version that the update with a micro-batch's gradient is applied to, minus
  /// the version that the micro-batch read.
  int staleness_min = 0;
  int staleness_max = 0;
};

/// What was proved of one rank's memory, from requested tensor bytes.
struct MemoryProof {
  Rank rank;
  Bytes peak;
  std::string at;  ///< the first action at which the peak is reached; empty for a rank without actions
  // What the peak is made of:
  Bytes weights;    ///< weights and buffers of the current version
  Bytes versions;   ///< older versions
  Bytes gradients;  ///< one accumulation
  Bytes optimizer_state;
  Bytes kept;       ///< loaded data, activations kept for backward or handed over on the rank
  Bytes transfers;  ///< receive slots, sends under way, gradients handed over on the rank
  Bytes transient;  ///< within the action
};

struct Proof {
  std::vector<Finding> findings;  ///< empty: accepted
  std::vector<StageProof> stages;
  std::vector<MemoryProof> memory;  ///< empty without costs
  int slots_per_channel = 0;        ///< as lowered
  /// Where the rules have operations launched, of a program that passed the proofs of matching and deadlock.
  std::optional<DeviceWaits> device_waits{};

  [[nodiscard]] bool accepted() const { return findings.empty(); }
};

}  // namespace stagecraft
