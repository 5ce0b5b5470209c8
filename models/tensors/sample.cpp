#include "models/tensors/sample.h"

#include <algorithm>

namespace stagecraft {

std::optional<FieldSpec> SampleSpec::field(const std::string& name) const {
  if (name == "inputs") return FieldSpec{name, shape, dtype};
  if (name == "targets" && targets != Targets::none) {
    const auto own = std::ranges::find(fields, name, &FieldSpec::name);
    if (own != fields.end()) return *own;
  }
  if (name == "targets") {
    switch (targets) {
      case Targets::classes:
        return FieldSpec{name, {}, at::kLong};
      case Targets::tokens:
        return FieldSpec{name, shape, at::kLong};
      case Targets::values:
        return FieldSpec{name, {classes}, at::kFloat};
      case Targets::none:
        return std::nullopt;
    }
  }
  for (const FieldSpec& spec : fields) {
    if (spec.name == name) return spec;
  }
  return std::nullopt;
}

std::vector<std::int64_t> SampleSpec::cut(std::vector<std::int64_t> its_shape, std::int64_t length) const {
  const bool alike = !its_shape.empty() && !shape.empty() && its_shape.front() == shape.front();
  if (length != kWholeLength && alike) its_shape.front() = length;
  return its_shape;
}

std::int64_t SampleSpec::tokens(const BatchSize& batch) const {
  if (dtype != at::kLong || shape.empty()) return 0;
  return batch.samples * (batch.length == kWholeLength ? shape.front() : batch.length);
}

}  // namespace stagecraft
