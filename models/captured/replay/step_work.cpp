#include "models/captured/replay/step_work.h"

#include "models/captured/operators/operators.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <numeric>
#include <string_view>

namespace stagecraft::captured {
namespace {

using Shape = std::vector<std::int64_t>;

double product(Shape::const_iterator begin, Shape::const_iterator end) {
  return std::accumulate(begin, end, 1.0,
                         [](double sum, std::int64_t size) { return sum * static_cast<double>(size); });
}
double product(const Shape& shape) { return product(shape.begin(), shape.end()); }

/// FlashAttention's backward has five products where its forward has two (Dao et al. 2022, section 3.1).
constexpr double kAttentionBackward = 2.5;

class StepReader {
 public:
  StepReader(const Step& step, const std::vector<Value>& values, std::int64_t b)
      : step_(step), values_(values), b_(b), name_(step.name.substr(0, step.name.find('.'))) {}

  [[nodiscard]] double multiply_adds() const {
    if (name_ == "aten::mm" || name_ == "aten::bmm" || name_ == "aten::mv" || name_ == "aten::dot" ||
        name_ == "aten::vdot" || name_ == "stagecraft::grouped_mm")
      return of_matrices(0);
    if (name_ == "aten::addmm" || name_ == "aten::baddbmm") return of_matrices(1);
    if (name_ == "aten::convolution") {
      return product(transposed(6) ? shape(0) : result()) * per_element(1);
    }
    if (name_ == "aten::convolution_backward") {
      const auto mask = step_.arguments[10].constant.toBoolList();
      double halves = 0;
      for (std::size_t i = 0; i < 2 && i < mask.size(); ++i) halves += mask[i] ? 1 : 0;
      return halves * product(shape(transposed(7) ? 1 : 0)) * per_element(2);
    }
    if (name_ == "stagecraft::lstm") return of_lstm(0);
    // Its backward begins with the forward, for what that keeps.
    if (name_ == "stagecraft::lstm_backward") return 3 * of_lstm(3);
    if (name_ == "stagecraft::gru") return of_gru(0);
    if (name_ == "stagecraft::gru_backward") return 2 * of_gru(2);
    if (name_ == "stagecraft::gru_backward_weight") return of_gru(0);
    if (name_.find("scaled_dot_product") == std::string::npos) return 0;
    const bool backward = name_.ends_with("_backward");
    const std::size_t first = backward ? 1 : 0;  // behind the gradient of the output
    const Shape query = shape(first), key = shape(first + 1), value = shape(first + 2);
    if (query.empty() || key.size() < 2 || value.empty()) return 0;
    const double forward = product(query.begin(), query.end() - 1) *
                           static_cast<double>(key[key.size() - 2]) *
                           static_cast<double>(query.back() + value.back());
    return backward ? kAttentionBackward * forward : forward;
  }

  [[nodiscard]] double bytes() const {
    // Reads the rows that it copies, not the whole table.
    if (name_ == "aten::embedding" && !step_.arguments[1].values.empty())
      return bytes_at(step_.arguments[1].values[0]) + 2 * bytes_at(step_.results[0]);
    double sum = 0;
    const auto add = [&](ValueId id) { sum += bytes_at(id); };
    for (const Argument& argument : step_.arguments) {
      for (const ValueId id : argument.values) add(id);
    }
    for (const ValueId id : step_.results) add(id);
    return sum;
  }

 private:
  [[nodiscard]] const Value& value(ValueId id) const { return values_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] double bytes_at(ValueId id) const {
    return id == kNoValue ? 0 : static_cast<double>(bytes_of(value(id).type, b_).value);
  }
  /// Without dimensions where a number is in a tensor's place. Nothing has compared the types with what the
  /// operator takes: it refuses them when it runs.
  [[nodiscard]] Shape shape(std::size_t argument) const {
    const std::vector<ValueId>& its = step_.arguments[argument].values;
    return its.empty() ? Shape{} : value(its[0]).type.at(b_);
  }
  [[nodiscard]] Shape result() const {
    return step_.results[0] == kNoValue ? Shape{0} : value(step_.results[0]).type.at(b_);
  }
  /// [..., rows, inner] times [..., inner, columns], or a vector in place of either.
  [[nodiscard]] double of_matrices(std::size_t left) const {
    const Shape right = shape(left + 1);
    return product(shape(left)) * (right.size() > 1 ? static_cast<double>(right.back()) : 1);
  }
  /// Of an input of [steps, samples, numbers] and the two weights behind it.
  [[nodiscard]] double of_lstm(std::size_t input) const {
    const Shape x = shape(input);
    if (x.size() < 2) return 0;
    return static_cast<double>(x[0] * x[1]) * (product(shape(input + 1)) + product(shape(input + 2)));
  }
  /// Each step's gates of [steps, samples, gates] by a product with a state of a third as many numbers.
  [[nodiscard]] double of_gru(std::size_t gates) const {
    const Shape its = shape(gates);
    return its.empty() ? 0 : product(its) * static_cast<double>(its.back()) / 3;
  }
  /// The weight is [out, in / groups, kernel], transposed [in, out / groups, kernel].
  [[nodiscard]] double per_element(std::size_t weight) const {
    const Shape its = shape(weight);
    return its.empty() ? 0 : product(its.begin() + 1, its.end());
  }
  [[nodiscard]] bool transposed(std::size_t argument) const {
    return step_.arguments[argument].constant.toBool();
  }

  const Step& step_;
  const std::vector<Value>& values_;
  std::int64_t b_;
  std::string name_;
};

}  // namespace

bool is_view(const Step& step) {
  if (step.own != Step::Own::none) return false;
  const Operator* op = find_operator(step.name);
  return op != nullptr && op->effect == Effect::view && !step.arguments.empty() &&
         !step.arguments[0].values.empty();
}

Bytes bytes_of(const ValueType& type, std::int64_t b) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(type.dtype));
  for (const std::int64_t size : type.at(b)) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      throw InputError(fmt::format("{} is too large for micro-batches of {} samples", type.text(), b));
    }
  }
  return Bytes{bytes};
}

OperatorWork work_of(const Step& step, const std::vector<Value>& values, std::int64_t b) {
  if (is_view(step)) return {};
  const StepReader reader(step, values, b);
  return {reader.multiply_adds(), reader.bytes()};
}

}  // namespace stagecraft::captured
