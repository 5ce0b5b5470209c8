#pragma once

// A step as it is for one size of micro-batch: its arguments by the names that its operator's schema gives them.

#include "models/captured/format/graph.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stagecraft::captured {

/// A step of one of operators(), for micro-batches of `b` samples. `constants` has its arguments by their
/// position, none in place of values. All outlive this object.
class StepView {
 public:
  using Sizes = std::vector<std::int64_t>;
  struct Type {
    at::ScalarType dtype = at::kFloat;
    Sizes sizes;
    [[nodiscard]] std::string text() const;
  };

  StepView(const Step& step, const std::vector<Value>& values, std::int64_t b,
           const std::vector<c10::IValue>& constants)
      : step_(step), values_(values), b_(b), constants_(constants) {}

  [[nodiscard]] const Step& step() const { return step_; }
  /// None where the schema has no argument of that name.
  [[nodiscard]] std::optional<std::uint32_t> position(std::string_view argument) const;
  /// Of a tensor argument; none where it is absent. A number in a tensor's place has no dimensions.
  [[nodiscard]] std::optional<Type> tensor(std::string_view argument) const;
  [[nodiscard]] Sizes sizes(std::string_view argument) const;
  /// Of a list, without those that are absent.
  [[nodiscard]] std::vector<Type> tensors(std::string_view argument) const;
  /// Of a list, or one; none where it is absent.
  [[nodiscard]] Sizes integers(std::string_view argument) const;
  [[nodiscard]] bool flag(std::string_view argument) const;
  [[nodiscard]] std::optional<double> number(std::string_view argument) const;
  /// The operator that made the argument, "aten::max_pool2d_with_indices", and the type of its first argument;
  /// "" where none did.
  [[nodiscard]] std::pair<std::string_view, Type> maker(std::string_view argument) const;
  [[nodiscard]] bool is_number(std::size_t position) const;
  [[nodiscard]] const c10::IValue& constant(std::size_t position) const { return constants_[position]; }

 private:
  [[nodiscard]] Type type_of(ValueId id) const;

  const Step& step_;
  const std::vector<Value>& values_;
  std::int64_t b_;
  const std::vector<c10::IValue>& constants_;
};

}  // namespace stagecraft::captured
