#include "models/captured/format/step_view.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft::captured {

std::string StepView::Type::text() const {
  return fmt::format("{}[{}]", dtype_name(dtype), fmt::join(sizes, ","));
}

std::optional<std::uint32_t> StepView::position(std::string_view argument) const {
  const std::vector<c10::Argument>& schema = step_.op->schema().arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    if (schema[i].name() == argument) return static_cast<std::uint32_t>(i);
  }
  return std::nullopt;
}

StepView::Type StepView::type_of(ValueId id) const {
  const ValueType& type = values_[static_cast<std::size_t>(id)].type;
  return {type.dtype, type.at(b_)};
}

bool StepView::is_number(std::size_t position) const { return constants_[position].isTensor(); }

std::optional<StepView::Type> StepView::tensor(std::string_view argument) const {
  const auto at = position(argument);
  if (!at) return std::nullopt;
  if (step_.arguments[*at].kind == Argument::Kind::value) return type_of(step_.arguments[*at].values[0]);
  if (is_number(*at)) return Type{constants_[*at].toTensor().scalar_type(), {}};
  return std::nullopt;
}

StepView::Sizes StepView::sizes(std::string_view argument) const {
  return tensor(argument).value_or(Type{}).sizes;
}

std::vector<StepView::Type> StepView::tensors(std::string_view argument) const {
  std::vector<Type> types;
  const auto at = position(argument);
  if (!at) return types;
  for (const ValueId id : step_.arguments[*at].values) {
    if (id != kNoValue) types.push_back(type_of(id));
  }
  return types;
}

StepView::Sizes StepView::integers(std::string_view argument) const {
  const auto at = position(argument);
  if (!at) return {};
  const c10::IValue& value = constants_[*at];
  if (value.isInt()) return {value.toInt()};
  return value.isIntList() ? value.toIntVector() : Sizes{};
}

bool StepView::flag(std::string_view argument) const {
  const auto at = position(argument);
  return at && constants_[*at].isBool() && constants_[*at].toBool();
}

std::optional<double> StepView::number(std::string_view argument) const {
  const auto at = position(argument);
  if (!at || !constants_[*at].isDouble()) return std::nullopt;
  return constants_[*at].toDouble();
}

std::pair<std::string_view, StepView::Type> StepView::maker(std::string_view argument) const {
  const auto at = position(argument);
  if (!at || step_.arguments[*at].kind != Argument::Kind::value) return {};
  const Value& value = values_[static_cast<std::size_t>(step_.arguments[*at].values[0])];
  if (value.made_from == kNoValue) return {};
  return {value.made_by, type_of(value.made_from)};
}

}  // namespace stagecraft::captured
