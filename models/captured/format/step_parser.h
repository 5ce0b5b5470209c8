#pragma once

// The steps of a graph, read against the schemas of their operators (operators.h). Sizes are known only where a
// program is prepared: argument_rules.h.

#include "base/json.h"
#include "models/captured/format/graph_values.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace stagecraft::captured {

/// Tensors of one kind that a layer has, or results of one step.
inline constexpr std::size_t kMostTensors = 10'000;

class StepParser {
 public:
  /// Reads arguments from `values` and adds results to it; it outlives this object.
  explicit StepParser(GraphValues& values) : values_(values) {}

  /// The steps of the part that `values` is in: ["OPERATOR", [results], [arguments]] each. Throws InputError.
  [[nodiscard]] Steps read(const Json& json, const std::string& pointer);

 private:
  [[nodiscard]] InputPlace at(const std::string& pointer) const { return values_.at(pointer); }
  Step step(const Json& json, const std::string& pointer);
  void listed(Step& step, const Json& json, const std::string& pointer);
  void arguments(Step& step, const Json& json, const std::string& pointer,
                 const std::vector<c10::Argument>& schema) const;
  void results(Step& step, const Json& json, const std::string& pointer, std::optional<std::size_t> number);
  void dropout(Step& step, const Json& json, const std::string& pointer);
  void noise(Step& step, const Json& json, const std::string& pointer);
  void only_in_forward(const std::string& pointer) const;
  void read_stream(Step& step, const Json& arguments, std::size_t i, const std::string& pointer);

  GraphValues& values_;
  std::set<std::uint32_t> streams_;  ///< of the whole graph
};

}  // namespace stagecraft::captured
