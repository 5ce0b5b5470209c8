#include "engine/device/operators.h"

#include "base/error.h"

namespace stagecraft {

void load_cuda_operators() { throw InputError("this build is without CUDA"); }

}  // namespace stagecraft
