#pragma once

// What `check`, `simulate` and `convert` are asked about: a file that may be a plan, a schedule (ours or
// PyTorch's) or a run configuration, told apart by its content.

#include "base/json.h"
#include "partitioner/plan/plan.h"
#include "schedules/interchange/pytorch_csv.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program.h"

#include <optional>
#include <string>

namespace stagecraft::cli {

/// What the user wants otherwise than the file says.
struct InputRequest {
  std::optional<int> micro_batches;  ///< of a step; plans and configurations only
  std::optional<int> steps;          ///< groups of an asynchronous segment; absent: until it is steady
};

struct InputProgram {
  std::string path;
  std::optional<Plan> plan;  ///< absent for a schedule file; its micro_batches are those asked for
  ScheduleProgram program;   ///< of one step, or of an asynchronous segment of several
  bool synchronous = true;   ///< steps follow each other with nothing in flight between
  std::optional<CostTable> assumed_costs;  ///< instead of the plan's
  std::optional<PytorchSchedule> pytorch;  ///< of a CSV file of PyTorch's, cell by cell

  /// Whether the file orders its own transfers, so that lowering has nothing to choose.
  [[nodiscard]] bool has_transfers() const { return pytorch && pytorch->has_communication(); }
  /// What a rank does: the program lowered with `options`, or the file's own transfers in its own order.
  [[nodiscard]] LoweredProgram lowered(const LoweringOptions& options = {}) const;

  [[nodiscard]] const CostTable* costs() const {
    if (assumed_costs) return &*assumed_costs;
    return plan && plan->costs ? &*plan->costs : nullptr;
  }
  [[nodiscard]] std::optional<Bytes> capacity() const { return plan ? plan->capacity : std::nullopt; }
};

/// Throws InputError for a file that is none of these, saying what it looks like.
[[nodiscard]] InputProgram read_input(const std::string& path, const InputRequest& request);
/// With costs to price it by: its own, or where `unit_costs` is asked for 1 ms for every forward and each half
/// of a backward. Throws InputError where there are none.
[[nodiscard]] InputProgram priced_input(const std::string& path, const InputRequest& request,
                                        bool unit_costs);
[[nodiscard]] InputProgram plan_input(const std::string& path, Plan plan, const InputRequest& request);

/// "plan", "schedule", "profile", "cluster", "trace" or "run config" by the keys of a JSON file; empty for any
/// other file. Throws InputError for one that cannot be read or parsed.
[[nodiscard]] std::string kind_of_file(const std::string& path);

/// One line: "1f1b, 4 stages on 4 ranks, 8 micro-batches per step".
[[nodiscard]] std::string summary(const InputProgram& input);
/// The same behind the file's name.
[[nodiscard]] std::string headline(const InputProgram& input);

/// A run configuration as a input: its plan, as `train` would use it. With the engine only; without it
/// throws InputError. `json` is the parsed file.
[[nodiscard]] InputProgram config_input(const std::string& path, const Json& json,
                                        const InputRequest& request);

}  // namespace stagecraft::cli
