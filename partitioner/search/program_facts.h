#pragma once

// What of a model decides, beside its costs, which program belongs to which cuts.

#include "partitioner/plan/profile.h"
#include "schedules/generators/schedule.h"

#include <vector>

namespace stagecraft::planning {

struct ProgramFacts {
  int gradient_from = 0;  ///< the first layer that is not frozen: stages before its own have no backward
  int cuttable = 0;       ///< cuts lie before layers 1 to `cuttable` - 1
  std::vector<TiedWeight> ties{};
  bool reads_fields = false;  ///< of the batch, in some layer

  /// Whether all cuts have one program, where the schedule's order does not follow the costs: no layer is frozen, and
  /// what holds a tied weight is on the first or the last stage, wherever the cuts are.
  [[nodiscard]] bool one_program() const;
  /// In the request what follows from the cuts. Where fields are read, all stages load: of a stage that reads none
  /// they have no bytes, and a load takes no time.
  void set(ScheduleRequest& request, const std::vector<int>& cuts) const;
};
[[nodiscard]] ProgramFacts program_facts(const Profile& profile, const Measurement& measurement,
                                         int cuttable);

}  // namespace stagecraft::planning
