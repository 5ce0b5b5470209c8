#pragma once

// Calls of operators as a model folder may have them: tensors, and steps over them in a graph file's form
// (docs/reference/model_graphs.md). Valid ones to begin from, and others drawn around them.
//
//   {"tensors": [{"type": "i64", "sizes": [4], "below": 10}], "steps": [["aten::OP", [{"tensor": 0}, 1, {"step": 0, "result": 1}]]]}

#include "base/json.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace stagecraft::test {

using Random = std::mt19937_64;

/// A call of the last step's operator that is meant to succeed. From a line like
///   ["aten::nll_loss_forward", "f32[4,10]", "i64[4]<10", null, 1, -100]
/// with defaults for arguments that are left out. "x=f32[4]" has a name: "=x" is the same tensor again.
/// {"made": LINE, "take": 1} is a result of an operator that is called before.
[[nodiscard]] Json call_of(const Json& line);

/// Calls with arguments by their schema alone: some of them succeed where an operator takes any tensors.
[[nodiscard]] std::vector<Json> plain_calls(const std::string& name);

/// Of every operator that a graph may use, in the order of their names: plain ones, then those of a file of lines.
/// Throws std::runtime_error where it cannot be read.
[[nodiscard]] std::map<std::string, std::vector<Json>> valid_calls(const std::string& path);

/// A call with one to three things changed, each to a value at or beyond what it may be.
[[nodiscard]] Json changed(const Json& call, Random& random);

/// A tensor of a call, with the same values every time. Throws c10::Error where no tensor can be so.
[[nodiscard]] at::Tensor tensor_of(const Json& spec);

}  // namespace stagecraft::test
