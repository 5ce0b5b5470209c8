#pragma once

// NumPy's .npy files (numpy.lib.format, versions 1 to 3), mapped: what is not read stays on the disk.

#include "stagecraft/base/error.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace stagecraft {

/// The array of a file, whose memory nobody may write to. Takes little-endian numbers and bool in C order; throws
/// InputError with the config's key (`place`) for whatever else, and for files that are cut off.
[[nodiscard]] at::Tensor map_npy(const std::string& path, const InputPlace& place);

/// The arrays of a folder's files NAME.npy, by name. Other files are left alone. Throws InputError likewise.
[[nodiscard]] std::map<std::string, at::Tensor> map_npy_folder(const std::string& path,
                                                               const InputPlace& place);

}  // namespace stagecraft
