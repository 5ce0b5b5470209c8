#pragma once

// `plan --cost pipedream`: what PipeDream's optimizer plans under its own cost model
// (partitioner/pipedream/).

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace stagecraft::cli {

struct PipedreamArguments {
  std::string cost;  ///< "pipedream"; empty: not asked for
  bool straight = false;
  bool fewer_machines = false;
  bool memory = false;
  std::optional<double> compression;
};

void add_pipedream_options(CLI::App& plan, PipedreamArguments& arguments);

/// Plans and prints; `plan` is the verb, whose options that mean nothing here are refused.
void plan_pipedream(const PipedreamArguments& arguments, const std::string& profile,
                    const std::string& cluster, std::optional<std::int64_t> micro_batch_size, bool as_json,
                    const CLI::App& plan);

}  // namespace stagecraft::cli
