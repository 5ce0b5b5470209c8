#pragma once

// What to plan, and for which machines: the options that `plan`, `compare` and `explain` share.

#include "base/machine_memory.h"
#include "cli/schedule_option.h"
#include "partitioner/search/planner.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// What a plan is made from.
struct PlanInputs {
  Profile profile;
  Cluster cluster;
  PlanRequest request;
  /// What the ranks share, where the profile was measured here and no cluster is named.
  std::vector<MemoryLimit> machine{};
};

/// A run configuration's, with `overrides` in it (--set): the profile in `profile_path`, checked against the config's model, or measured now
/// when it is empty; the cluster in `cluster_path`, or the config's own. With the engine only; without it
/// throws InputError.
[[nodiscard]] PlanInputs config_plan_inputs(const std::string& config,
                                            const std::vector<std::string>& overrides,
                                            const std::string& profile_path, const std::string& cluster_path);

/// The options as given. What is absent is the config's, or without a config the default in --help.
struct RequestOptions {
  std::string config;
  std::vector<std::string> overrides{};  ///< of the config
  std::string profile;
  std::string cluster;
  std::optional<ScheduleAsked> schedule{};
  std::optional<int> micro_batches{};
  bool every_size = false;  ///< --micro-batches auto: all sizes in the profile; compare alone takes it
  std::optional<std::int64_t> micro_batch_size{};
  std::optional<int> stages{};
  std::optional<int> virtual_stages{};
  std::vector<int> cuts{};
  std::vector<int> widths{};
  std::optional<bool> replicate{};
  std::optional<RecomputeAsked> recompute{};
  std::optional<double> time_limit{};  ///< seconds

  /// Reads the files, or measures the config's model, and puts what was given into the request. Throws
  /// InputError for files that cannot be read, and where inputs are missing; `verb` is named there.
  [[nodiscard]] PlanInputs read(const std::string& verb) const;
};

enum class RequestKind {
  one_plan,       ///< --schedule, --micro-batches N
  several_plans,  ///< the verb has its own --schedules; --micro-batches N|auto
};

// `options` outlive the parsing.

/// The positional CONFIG; compare has its own.
void add_config(CLI::App& verb, RequestOptions& options);
/// All others.
void add_request_options(CLI::App& verb, RequestOptions& options, RequestKind kind);

}  // namespace stagecraft::cli
