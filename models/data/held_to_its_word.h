#pragma once

// Data sets that a program brings, held against what their sample() says. What LibTorch makes of a batch of another
// shape or type comes late, and does not name the data.

#include "models/data/dataset.h"

#include <cstdint>
#include <memory>
#include <string>

namespace stagecraft {

/// `data`, of which each batch is compared with its sample(): as many rows as were asked for, shape and type of
/// inputs, targets and fields. Throws InputError that names the data set (`name`), the split and the samples; so
/// does whatever else comes out of it. Costs no reading.
[[nodiscard]] std::unique_ptr<Dataset> held_to_its_word(std::unique_ptr<Dataset> data,
                                                        const std::string& name);

/// Reads the first `samples` of the training and of the validation set, all that is in them, so that a broken promise
/// shows before anything is planned: also tokens beyond the vocabulary, and classes beyond the data's own where
/// the loss `reads_targets`. Throws InputError (`file` names the config).
void check_first_batches(const Dataset& data, bool reads_targets, std::int64_t samples,
                         const std::string& file, const std::string& name);

}  // namespace stagecraft
