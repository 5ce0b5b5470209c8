#include "engine/device/operators.h"

#include "base/error.h"

#include <fmt/format.h>

#include <dlfcn.h>

namespace stagecraft {

void load_cuda_operators() {
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const char* const why = ::dlerror();
  throw InputError(fmt::format("LibTorch's CUDA operators cannot be loaded: {}",
                               why != nullptr ? why : "libtorch_cuda.so"));
}

}  // namespace stagecraft
