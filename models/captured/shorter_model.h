#pragma once

// A model on samples that are cut to a shorter length: a manifest of its own beside the first
// (docs/reference/model_folder.md), and layers that are those of the first but for graphs and constants.

#include "models/captured/model_folder.h"

#include <cstdint>

namespace stagecraft::captured {

/// Throws InputError at `place`, in the shorter one's manifest, where it is not `whole` at `length`: other
/// layers, weights, values between layers, fields or a loss of another kind.
void check_shorter(const ModelFolder& whole, const ModelFolder& shorter, std::int64_t length,
                   const InputPlace& place);

/// Whether two layers read alike and are not alike, so that nobody could tell which one is meant. Fields tell
/// them apart, but not in a dry pass, which asks for outputs.
[[nodiscard]] bool confusable(const FolderLayer& one, const FolderLayer& other);

}  // namespace stagecraft::captured
