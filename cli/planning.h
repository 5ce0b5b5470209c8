#pragma once

// Making one plan and printing it: what `plan`, `explain` and `compare` share.

#include "base/json.h"
#include "base/machine_memory.h"
#include "cli/request_options.h"
#include "partitioner/search/planner.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stagecraft::cli {

struct PlanOutput {
  std::string path;                ///< where plan.json goes; empty: nowhere
  bool as_json = false;            ///< one JSON document to stdout instead of tables
  std::string tables{};            ///< where the tables go as well; empty: nowhere
  std::optional<Jitter> jitter{};  ///< also price the best plans with times that vary
  ChooseBy choose_by = ChooseBy::step;
  bool of_graph = false;  ///< the profile's layers are a graph's nodes: print which of them each stage has
  bool explain = false;   ///< why the plan is as it is, and what else would bring
  /// Which what-if of the explanation is being planned; may be empty.
  std::function<void(const std::string& what, int tried, int all)> progress{};
};

/// -o and --json, which prints `what_json_has`. Also --tables, which --help leaves out: it is for programs that
/// need both of one search.
void add_plan_output(CLI::App& verb, PlanOutput& output, const std::string& what_json_has);

/// What `plan` and `explain` do, and `compare` where one schedule leaves only stages to compare: reads the
/// inputs, plans and prints. `verb` is named in messages. Throws InputError also where the options contradict
/// each other.
void plan_asked(const std::string& verb, const RequestOptions& options, PlanOutput output);

/// Plans, writes the plan and prints it with the runners-up. Throws what make_plan throws, and RefusedError
/// where the plan's ranks do not fit the limits of `machine` together.
void plan_from(const Profile& profile, const Cluster& cluster, const PlanRequest& request,
               const PlanOutput& output, const std::vector<MemoryLimit>& machine = {});

/// "4 ranks need 9 GiB together, but ...": where all ranks of a plan do not fit one machine's limits.
[[nodiscard]] std::optional<std::string> beyond_machine(const Plan& plan,
                                                        const std::vector<MemoryLimit>& machine);
/// The advice for that.
inline constexpr const char* kWhatMayFit =
    "What may fit: --recompute auto, a smaller --micro-batch-size, or other machines (--cluster FILE)";

/// What is done to a plan before it is printed, if it is asked for: jitter, and writing it.
void finish_plan(PlanResult& result, const PlanOutput& output);
/// The last lines of what is printed.
[[nodiscard]] std::string where_written(const PlanOutput& output);

/// The tables: stages with their costs, the prediction, and the best of every other stage count.
[[nodiscard]] std::string plan_text(const PlanResult& result, const Profile& profile, const Cluster& cluster);
[[nodiscard]] Json plan_json(const PlanResult& result, const Profile& profile);

}  // namespace stagecraft::cli
