#pragma once

// Data compared with the model that is to read it: whole numbers beyond an embedding's rows or a loss's
// classes, and numbers that are not finite.

#include "models/data/dataset.h"
#include "models/losses/loss.h"
#include "models/model.h"

#include <memory>
#include <string>

namespace stagecraft {

/// The same data, whose batches are compared with what `model` and `loss` can use (NumberCheck) when they are
/// read. Throws InputError with the key, the file and the sample: at once for what the model's own fill values
/// are, for data that is read quickly (Dataset::reads_quickly, up to 2^26 numbers per array and split) and for a
/// vocabulary that is larger than the model's; for other data when the batch is read. `file` is the config's.
[[nodiscard]] std::unique_ptr<Dataset> checked_for(std::unique_ptr<Dataset> data, const Model& model,
                                                   const Loss& loss, const std::string& file);

}  // namespace stagecraft
