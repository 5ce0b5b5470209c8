#pragma once

// The IDX format of MNIST (yann.lecun.com/exdb/mnist): big-endian, magic 0x0801 (labels) or 0x0803 (images),
// a 32-bit size for each dimension, then unsigned bytes.

#include "models/data/dataset.h"

namespace stagecraft {

/// IDX files (plain or .gz) as MNIST and Fashion-MNIST have them, in one folder.
struct IdxDataConfig {
  std::string path = "data/fashion-mnist";
};
void describe(Fields& f, IdxDataConfig& c);

/// Images of shape [1, rows, columns] as floats: x / 255, then minus 0.2860 and divided by 0.3530, the mean
/// and standard deviation of Fashion-MNIST's training images. Fixed, so that a subset is normalized like the
/// whole. Validation is the folder's t10k pair.
[[nodiscard]] std::unique_ptr<Dataset> open_idx(const IdxDataConfig& config, const InputPlace& place);

}  // namespace stagecraft
