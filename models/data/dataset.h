#pragma once

// Data sets: random access to samples, the same on every rank. Who needs inputs (stage 0) and who needs
// targets (the last stage) each reads its own part; nothing travels.
//
// Built-in and added ones:
//
//   data_sets().add<ParquetSettings>("parquet", open_parquet, {.location_keys = {"path"}});

#include "base/error.h"
#include "base/registry.h"
#include "models/tensors/sample.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

enum class Split : std::uint8_t { train, validation };

/// So many samples that are cut to one length.
struct LengthBucket {
  std::int64_t length = kWholeLength;
  std::int64_t samples = 0;
};

/// Where a number of a sample is from, for messages.
struct SampleOrigin {
  InputPlace place{};       ///< the config's key; empty: nobody knows
  std::string path{};       ///< of the file
  std::int64_t sample = 0;  ///< its number in the file
};

/// Thread-safe for reading. Batches are fresh tensors on the CPU.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size(Split split) const = 0;
  [[nodiscard]] virtual SampleSpec sample() const = 0;  ///< dtype: kFloat for features, kLong for tokens
  [[nodiscard]] virtual at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const = 0;
  [[nodiscard]] virtual at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const = 0;
  /// One of sample().fields, [samples, the field's shape].
  [[nodiscard]] virtual at::Tensor field(Split split, const std::string& name,
                                         const std::vector<std::int64_t>& indices) const;
  /// How long each sample is without the padding behind it, from 1 to sample().shape[0]. Empty: nobody knows.
  [[nodiscard]] virtual std::vector<std::int64_t> lengths(Split split) const;
  /// Where samples are cut to several lengths: ascending, the last kWholeLength. Samples are then numbered bucket
  /// behind bucket, and a batch is as long as the bucket of its last sample. Empty: none is cut.
  [[nodiscard]] virtual std::vector<LengthBucket> buckets(Split split) const;
  /// The same data with no sample cut, in an order of its own.
  [[nodiscard]] virtual const Dataset& uncut() const { return *this; }
  /// Whether reading any sample takes no more than copying it, so that all may be looked through before a run.
  [[nodiscard]] virtual bool reads_quickly() const { return false; }
  /// Of sample `index` of `field`: "inputs", "targets" or another.
  [[nodiscard]] virtual SampleOrigin origin(Split split, const std::string& field, std::int64_t index) const;
  [[nodiscard]] virtual std::string fingerprint() const = 0;  ///< of the bytes read; ranks compare it
  [[nodiscard]] virtual std::string summary() const = 0;      ///< one line for the start-up table
};

/// Of some samples what `data` calls "inputs" or "targets", or one of its fields.
[[nodiscard]] at::Tensor read_named(const Dataset& data, Split split, const std::string& name,
                                    const std::vector<std::int64_t>& indices);

/// `read`, some samples of a field, as samples of `shape`: with one last dimension of 1 less or more, where that is
/// the difference.
[[nodiscard]] at::Tensor fitted(const at::Tensor& read, const std::vector<std::int64_t>& shape);

/// What a model reads as `wanted`: of the data set, by the model's names and in its types, as long as the batch.
[[nodiscard]] FieldTensors read_fields(const Dataset& data, Split split,
                                       const std::vector<BatchField>& wanted,
                                       const std::vector<std::int64_t>& indices);

/// Opening one throws InputError (missing file with how to fetch it, truncated or malformed data) at the site,
/// which is the config's /data.
struct DatasetKind {
  using Site = InputPlace;
  using Product = std::unique_ptr<Dataset>;
  static constexpr const char* kWhat = "data set";
  static Registry<DatasetKind>& registry();
};
[[nodiscard]] inline Registry<DatasetKind>& data_sets() { return DatasetKind::registry(); }

/// The `data` part of a config.
struct DataConfig {
  Named<DatasetKind> source;
  bool shuffle = true;
  bool drop_last = false;
  std::vector<std::int64_t> buckets{};  ///< lengths that samples are cut to; empty: none is cut
};
void describe(Fields& f, DataConfig& c);

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
