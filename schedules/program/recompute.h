#pragma once

// Recomputation (activation checkpointing): a stage keeps only a micro-batch's input from its forward on, and
// does the forward again just before the backward (Chen et al., "Training Deep Nets with Sublinear Memory
// Cost", arXiv 1604.06174; in pipelines GPipe, arXiv 1811.06965, section 2.3). It is no question of the
// schedule: one pass adds it to any program.
//
// A recompute stands directly before the backward, or its input half, which waits for the gradient: so the
// work is done while the gradient is still on its way, as GPipe does it. Both halves of a split backward
// share one.

#include "schedules/program/program.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Which forwards of a stage are repeated.
enum class Recompute : std::uint8_t {
  none,
  all,
  /// All but the last micro-batch of every group on each of the stage's replicas, the one with the highest
  /// number there. Its activations are the last that a step makes: on the last stage of most schedules its
  /// backward follows its forward directly. It saves one forward per step and replica. It costs the memory of
  /// one micro-batch more where the backwards of earlier ones come in between (torchgpipe, arXiv 2004.09910,
  /// has the same choice).
  all_but_last,
};

template <>
inline constexpr std::array enum_names<Recompute>{"none", "all", "all_but_last"};

/// One setting for all stages (Recompute's, in their order), or each stage's own, which the planner chooses.
enum class RecomputeAsked : std::uint8_t { none, all, all_but_last, automatic };

template <>
inline constexpr std::array enum_names<RecomputeAsked>{"none", "all", "all_but_last", "auto"};

[[nodiscard]] constexpr RecomputeAsked asked_as(Recompute setting) {
  return static_cast<RecomputeAsked>(setting);
}
/// Absent: each stage has its own.
[[nodiscard]] constexpr std::optional<Recompute> one_setting(RecomputeAsked asked) {
  if (asked == RecomputeAsked::automatic) return std::nullopt;
  return static_cast<Recompute>(asked);
}

/// [stage]; empty: none anywhere.
using RecomputeSettings = std::vector<Recompute>;

/// Throws InputError at `place` unless there is a setting for each of the stages, or none at all.
void validate_settings(const RecomputeSettings& settings, int stages, const InputPlace& place = {});

[[nodiscard]] Recompute setting_of(const RecomputeSettings& settings, StageId stage);

[[nodiscard]] bool any_recompute(const RecomputeSettings& settings);

/// One past the last micro-batch of each group.
[[nodiscard]] std::vector<int> group_ends(const std::vector<int>& group_sizes);

/// Whether the forward of a micro-batch is repeated, on a stage with so many replicas. `group_end` is that
/// of its group.
[[nodiscard]] constexpr bool recomputes(Recompute setting, MicroBatch micro_batch, int replicas,
                                        int group_end) {
  const bool last = micro_batch.value + replicas >= group_end;
  return setting == Recompute::all || (setting == Recompute::all_but_last && !last);
}

/// How many of a step's micro-batches each stage repeats, of `micro_batches`, as a share.
[[nodiscard]] double recomputed_share(Recompute setting, int replicas, int micro_batches);

/// For people, behind a schedule's name: " with recomputation", and on what; nothing where none is asked for.
[[nodiscard]] std::string recompute_words(const RecomputeSettings& settings);

/// Adds the recomputes that `settings` ask for; where one stands already it is left. `program` is a
/// generator's: complete, in range. Throws InputError for a validation program, which keeps nothing, and for
/// settings that do not match its stages.
void insert_recomputes(ScheduleProgram& program, const RecomputeSettings& settings);

}  // namespace stagecraft
