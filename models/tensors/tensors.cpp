#include "models/tensors/tensors.h"

#include "base/error.h"
#include "base/fingerprint.h"

#include <fmt/format.h>

namespace stagecraft {

void Tensors::missing(std::size_t i, std::size_t size) {
  if (size == 0) {
    throw InternalError(
        "a tensor of an empty list is read: the layer has no such parameter or buffer, or its forward put "
        "nothing into `kept`");
  }
  throw InternalError(fmt::format("tensor {} of a list of {} is read; they are numbered from 0",
                                  static_cast<std::ptrdiff_t>(i), size));
}

std::string hash_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  return fingerprint({static_cast<const char*>(host.const_data_ptr()), host.nbytes()});
}

}  // namespace stagecraft
