#pragma once

// Data sets: random access to samples, the same on every rank. Who needs inputs (stage 0) and who needs
// targets (the last stage) each reads its own part; nothing travels.

#include "stagecraft/models/data/data_config.h"
#include "stagecraft/models/model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

enum class Split : std::uint8_t { train, validation };

/// Thread-safe for reading. Batches are fresh tensors on the CPU.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size(Split split) const = 0;
  [[nodiscard]] virtual SampleSpec sample() const = 0;  ///< dtype: kFloat for features, kLong for tokens
  [[nodiscard]] virtual at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const = 0;
  [[nodiscard]] virtual at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const = 0;
  [[nodiscard]] virtual std::string fingerprint() const = 0;  ///< of the bytes read; ranks compare it
  [[nodiscard]] virtual std::string summary() const = 0;      ///< one line for the start-up table
};

/// Throws InputError (missing file with how to fetch it, truncated or malformed data) at `place`, the
/// config's /data.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const DataConfig& config, const InputPlace& place);

/// Position -> sample index in one epoch: a permutation keyed by (seed, epoch); the identity where `shuffle`
/// is false. Computed element by element in O(1) (a keyed Feistel network with cycle walking), so nothing of
/// the data set's size is held.
class Shuffle {
 public:
  Shuffle(std::int64_t size, std::uint64_t seed, std::int64_t epoch, bool shuffle);
  [[nodiscard]] std::int64_t operator()(std::int64_t position) const;

 private:
  std::int64_t size_;
  std::uint64_t key_;
  unsigned half_bits_ = 0;
  bool shuffle_;
};

}  // namespace stagecraft
