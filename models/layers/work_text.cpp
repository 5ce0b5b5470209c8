#include "models/layers/work_text.h"

#include "models/tensors/shape_text.h"

#include <fmt/format.h>

namespace stagecraft {

std::string work_text(const Layer& layer, const char* work, const at::Tensor& of) {
  std::string text = fmt::format("layer \"{}\" ({}), {}", layer.name(), layer.facts().type, work);
  if (of.defined()) text += " of " + shape_text(of.sizes());
  const char* before = ", with ";
  for (const ParameterSpec& spec : layer.parameters()) {
    text += fmt::format("{}{} {}", before, spec.name, shape_text(spec.shape));
    before = ", ";
  }
  return text;
}

}  // namespace stagecraft
