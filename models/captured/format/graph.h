#pragma once

// One layer's graph as its file says it (docs/reference/model_graphs.md): lists of operators over numbered
// values, checked when they were read, the same for every size of micro-batch.

#include "models/captured/format/value_type.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::captured {

/// A value by its number: the inputs, the gradients of the outputs, parameters, buffers, constants, fields of
/// the batch, then the results of steps in their order.
using ValueId = std::int32_t;
inline constexpr ValueId kNoValue = -1;

struct Value {
  ValueType type;
  std::int32_t buffer = -1;      ///< whose memory it may share; -1: no buffer's
  const char* made_by = "";      ///< the operator, "aten::max_pool2d_with_indices"; "": no listed one's
  ValueId made_from = kNoValue;  ///< that operator's first argument
};

/// One argument of a step. Where it depends on b it is finished by replay.h.
struct Argument {
  enum class Kind : std::uint8_t {
    constant,         ///< `constant`, as it stands
    value,            ///< values[0]
    values,           ///< a list of tensors
    optional_values,  ///< the same, kNoValue for those that are absent
    integer,          ///< sizes[0], where the schema has an integer
    integers,         ///< `sizes`, a list of integers
    number,           ///< sizes[0], where the schema has a number
    wrapped,          ///< sizes[0] as a tensor without dimensions, as Python's numbers become
    device,           ///< the inputs'
  };
  Kind kind = Kind::constant;
  c10::IValue constant{};
  std::vector<ValueId> values{};
  std::vector<AffineSize> sizes{};
};

struct CompiledRun;

struct Step {
  enum class Own : std::uint8_t {
    none,
    dropout,
    dropout_apply,
    bernoulli,
    uniform,
    normal,
    exponential,
    compiled
  };

  std::string name;                       ///< "aten::addmm"
  InputPlace place{};                     ///< in the graph's file; empty for compiled code
  std::optional<c10::OperatorHandle> op;  ///< absent for Stagecraft's own
  Own own = Own::none;
  double probability = 0;    ///< of Stagecraft's own
  std::uint32_t stream = 0;  ///< of those that draw
  std::vector<Argument> arguments;
  std::vector<ValueId> results;                 ///< kNoValue: nothing reads it
  bool returns_list = false;                    ///< the results are the elements of one list
  std::shared_ptr<const CompiledRun> compiled;  ///< of Own::compiled (compiled_code.h)
};
using Steps = std::vector<Step>;

/// A gradient that is left @ right, and nothing else of the step that makes it: kNoValue twice for others.
struct Product {
  ValueId left = kNoValue, right = kNoValue;
};

struct Graph {
  std::string hash;                        ///< the first 16 hex digits of its file's SHA-256
  std::vector<ValueType> inputs, outputs;  ///< floating-point ones have gradients (models/tensors/bundle.h)
  std::vector<ValueType> parameters, buffers, constants, fields;

  std::vector<Value> values;           ///< of training, by ValueId
  std::vector<Value> evaluate_values;  ///< of evaluation
  Steps forward, backward_input, backward_weight, evaluate;

  std::vector<ValueId> forward_outputs, evaluate_outputs;  ///< may be inputs
  std::vector<ValueId> new_buffers;                        ///< after a training forward; kNoValue: stays
  std::vector<ValueId> keep_input, keep_weight;            ///< by the forward
  std::vector<ValueId> buffers_read_back;                  ///< by backward_input: none of those that change
  std::vector<ValueId> input_gradients;                    ///< of each input; kNoValue: it has none
  std::vector<ValueId> hand_on;                            ///< by backward_input for backward_weight
  std::vector<ValueId> gradients;                          ///< of the parameters; kNoValue: none
  std::vector<Product> products;                           ///< of each gradient
  std::int64_t multiply_adds = 0;                          ///< of one sample's forward

  [[nodiscard]] static ValueId input(std::size_t i) { return static_cast<ValueId>(i); }
  /// Of an output, that backward_input reads.
  [[nodiscard]] ValueId gradient(std::size_t output) const { return input(inputs.size() + output); }
  [[nodiscard]] ValueId parameter(std::size_t i) const { return gradient(outputs.size() + i); }
  [[nodiscard]] ValueId buffer(std::size_t i) const { return parameter(parameters.size() + i); }
  [[nodiscard]] ValueId constant(std::size_t i) const { return buffer(buffers.size() + i); }
  [[nodiscard]] ValueId field(std::size_t i) const { return constant(constants.size() + i); }
  [[nodiscard]] ValueId result(std::size_t i) const { return field(fields.size() + i); }
};

}  // namespace stagecraft::captured
