#pragma once

// A call of an operator (operator_calls.h) as a graph's steps take it: its file's rules, then the call, on a
// device. What a call makes is learned from the errors that name it.

#include "base/json.h"
#include "models/captured/format/graph.h"
#include "models/layers/layer.h"
#include "models/tensors/matrix_products.h"

#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

/// Of results by step and place, as graph files write types; "" for a result that is no tensor.
using ResultTypes = std::map<std::pair<std::size_t, std::size_t>, std::string>;

/// As many as the operators' schemas have, of a type that nothing has.
[[nodiscard]] ResultTypes unknown_types(const Json& call);

/// From an error of a trial; false where it says nothing of a type.
[[nodiscard]] bool learn(ResultTypes& types, const Json& call, const std::string& error);

/// The first `count` steps of a call, with what is known of their results.
class OperatorTrial {
 public:
  /// Throws InputError where the steps break a rule of graph files.
  OperatorTrial(const Json& call, std::size_t count, const ResultTypes& types);
  /// All steps of a call that succeeds on the CPU, with the types of what it makes there.
  explicit OperatorTrial(const Json& call);

  [[nodiscard]] const captured::Steps& steps() const { return graph_.forward; }
  [[nodiscard]] const std::vector<captured::Value>& values() const { return graph_.values; }

  /// The call's, on the CPU. They may be replaced by others of the same types, on another device too.
  [[nodiscard]] Tensors& tensors() { return tensors_; }

  /// Results of the last step, with tensors copied to the device where they lie elsewhere. `hold`: whether they outlive it. `ran` becomes
  /// true before the first step runs. Throws InputError where LibTorch refuses, or makes something else.
  [[nodiscard]] Tensors run(c10::Device device, bool hold, MatrixProducts products, bool* ran);

 private:
  captured::Graph graph_;
  Tensors tensors_;
  std::vector<captured::ValueId> outputs_;
};

/// What a call that succeeds on the CPU makes there. Throws what refuses it.
[[nodiscard]] std::pair<ResultTypes, Tensors> made_on_cpu(const Json& call);

}  // namespace stagecraft::test
