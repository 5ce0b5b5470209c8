#include "stagecraft/models/sample.h"

namespace stagecraft {

std::optional<FieldSpec> SampleSpec::field(const std::string& name) const {
  if (name == "inputs") return FieldSpec{name, shape, dtype};
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

}  // namespace stagecraft
