#include "models/layers/site.h"

#include "models/tensors/shape_text.h"

#include <fmt/format.h>

namespace stagecraft {

void LayerSite::refuse(const std::string& expected) const {
  const std::string giver = from.empty() ? "the data" : '"' + from + '"';
  throw InputError(place, fmt::format("layer \"{}\" cannot take {}, a sample as {} gives it: {}", name,
                                      shape_text(input), giver, expected));
}

}  // namespace stagecraft
