#pragma once

// Schedules: generators of programs. One file per schedule or family, each citing its paper; registry.h is the list.

#include "schedules/costs/costs.h"
#include "schedules/program/program.h"
#include "schedules/program/recompute.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// What a generator is asked for.
struct ScheduleRequest {
  Placement placement{};
  std::vector<int> group_sizes{};  ///< synchronous: one group. All >= 1.
  /// Pipedream: a micro-batch reads the same version on every stage (SOSP'19, 3.3).
  bool vertical_sync = false;
  bool clip = false;  ///< an agree_norm before each step
  /// Of a part of a larger placement: false where its ranks wait for those of other parts behind each step.
  bool goes_on = true;
  int warmup_extra = 0;  ///< 1f1b: so many micro-batches more are forwarded before the first backward
  /// What schedules that order by time go by, not owned. Null: every stage's forward and both halves of its
  /// backward take one unit and keep one unit, transfers take no time.
  const CostTable* costs = nullptr;
  /// [rank] whose speed and links in `costs` are its own, for a part of a larger placement; empty: each its own.
  std::vector<Rank> priced_as{};
  std::optional<Bytes> capacity{};           ///< usable memory per rank, for schedules that search within it
  RecomputeSettings recompute{};             ///< [stage] which forwards are repeated; empty: none
  std::vector<StageId> also_load{};          ///< as in ProgramHeader
  std::vector<std::vector<StageId>> ties{};  ///< likewise
  std::vector<Skip> skips{};                 ///< likewise; of searched schedules none
  StageId gradient_from{0};                  ///< likewise
};

/// A schedule as users name it in `pipeline.schedule`.
struct Schedule {
  std::string name;
  std::string summary;  ///< one line for --help and docs
  std::string paper;
  bool synchronous = true;  ///< all micro-batches of a step read the same version; a step ends with a flush
  PlacementKind placement = PlacementKind::straight;  ///< what it is made for, and gets from the planner
  int virtual_stages = 1;                             ///< per rank, where nobody says otherwise
  /// The order follows the request's costs, so what is in flight is known only with them.
  bool orders_by_time = false;
  /// Made by a search: the planner searches longer, over placements as well, and the plan carries the result.
  bool searched = false;
  bool takes_vertical_sync = false;
  bool takes_warmup_extra = false;
  /// Asynchronous: a micro-batch reads the same version on every stage, whatever is asked for.
  bool one_version = false;
  bool clips = true;  ///< there is a moment at which all gradients of a step exist
  std::function<ScheduleProgram(const ScheduleRequest&)> build;  ///< behind generate(), which adds recomputes

  /// Throws InputError for a request that the schedule cannot serve: an option it does not take (below
  /// `options`, where it was read), a placement it is not made for, more than one group in a synchronous one,
  /// recompute settings that do not match the stages.
  void check(const ScheduleRequest& request, const InputPlace& options = {}) const;
  /// Whether, so asked, a micro-batch reads the same version on every stage: what tied weights need.
  [[nodiscard]] bool reads_one_version(const ScheduleRequest& request) const {
    return synchronous || one_version || request.vertical_sync;
  }
  /// `check`, and the program, with the recomputes that are asked for.
  [[nodiscard]] ScheduleProgram generate(const ScheduleRequest& request) const;
  /// The placement of its kind. Throws InputError when it is not one for so many stages per rank.
  [[nodiscard]] Placement place(int ranks, int stages_per_rank) const;
};

/// Forward only, for validation: loads, forwards and one report for the whole segment. Needs no schedule.
[[nodiscard]] ScheduleProgram validation_program(const Placement& placement, int micro_batches,
                                                 const std::vector<StageId>& also_load = {},
                                                 const std::vector<Skip>& skips = {});

}  // namespace stagecraft
