#pragma once

// NumPy's .npy files (numpy.lib.format, versions 1 to 3): what is not read stays on the disk.

#include "base/error.h"
#include "models/data/stored_array.h"

#include <map>
#include <string>

namespace stagecraft {

/// The array of a file. Takes little-endian numbers and bool in C order; throws InputError with the config's key
/// (`place`) for whatever else, and for files that are cut off.
[[nodiscard]] StoredArray open_npy(const std::string& path, const InputPlace& place);

/// The arrays of a folder's files NAME.npy, by name. Other files are left alone. Throws InputError likewise.
[[nodiscard]] std::map<std::string, StoredArray> open_npy_folder(const std::string& path,
                                                                 const InputPlace& place);

}  // namespace stagecraft
