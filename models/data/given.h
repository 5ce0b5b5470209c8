#pragma once

// Batches that the program itself brings, one step at a time, in place of a data set that is read: what a script in
// Python hands to a pipeline. The config says what a batch has, and no more.

#include "base/describe.h"
#include "models/data/dataset.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// Of a batch's numbers. Whole ones of any width are read as int64.
enum class GivenType : std::uint8_t { float32, float64, bfloat16, float16, int64 };
template <>
inline constexpr std::array enum_names<GivenType>{"float32", "float64", "bfloat16", "float16", "int64"};

/// What each batch has.
struct GivenField {
  std::string name{};
  std::vector<std::int64_t> shape{};  ///< of one sample
  GivenType dtype = GivenType::float32;
};
template <class V>
void describe(V& v, GivenField& f) {
  v.required("name", f.name, "of the field", json::non_empty());
  v.optional("shape", f.shape, "of one sample");
  v.optional("dtype", f.dtype, "of its numbers; whole ones of any width are int64");
}

struct GivenDataConfig {
  std::string inputs = "inputs";  ///< the field that the model's first layer reads
  std::vector<GivenField> fields{};
  /// Lengths that samples may be cut to, ascending; the last is that of the fields. Empty: none is cut.
  std::vector<std::int64_t> lengths{};
  std::int64_t classes =
      0;  ///< of the targets, or the vocabulary, where the model or its loss asks; 0: nobody says
};
void describe(Fields& f, GivenDataConfig& c);

/// A batch by the names of its fields. Rows are samples.
using GivenTensors = std::map<std::string, at::Tensor>;

/// Samples of all batches that are held; those of bucket b are numbered from b times this number on.
inline constexpr std::int64_t kMostGivenSamples = std::int64_t{1} << 32U;

class GivenBatches final : public Dataset {
 public:
  /// What sizes it says: those of one batch, which a run is planned for, or all that batches to come may have, of
  /// any length.
  enum class Sizes : std::uint8_t { one_batch, any_batch };
  /// `samples`: of a whole training batch.
  GivenBatches(GivenDataConfig config, std::int64_t samples, Sizes sizes);

  /// Batches that are held at once: one that is read, and the next one.
  static constexpr std::size_t kPlaces = 2;
  /// A copy of a batch on the CPU, held in `place` until the next one there: the caller may write to its own at once.
  /// Returns the number of its first sample. Call it while nobody reads what was in that place. Throws InputError for
  /// a batch that is not as the config says: a field that is missing or too much, of another shape or type, on a
  /// device, of another number of rows, or without any.
  std::int64_t give(const GivenTensors& batch, std::size_t place = 0);
  [[nodiscard]] std::int64_t samples_given() const { return rows_; }
  void forget() { batches_ = {}; }

  [[nodiscard]] std::int64_t size(Split split) const override;
  [[nodiscard]] SampleSpec sample() const override;
  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override;
  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override;
  [[nodiscard]] at::Tensor field(Split split, const std::string& name,
                                 const std::vector<std::int64_t>& indices) const override;
  [[nodiscard]] std::vector<LengthBucket> buckets(Split split) const override;
  [[nodiscard]] SampleOrigin origin(Split split, const std::string& field, std::int64_t index) const override;
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::string summary() const override;

 private:
  /// Of `given` as the config has the field; kWholeLength: not cut. Throws InputError.
  [[nodiscard]] std::int64_t length_in(const GivenField& field, const at::Tensor& given) const;

  GivenDataConfig config_;
  std::int64_t samples_;
  Sizes sizes_;
  std::array<GivenTensors, kPlaces> batches_;
  std::int64_t rows_ = 0;  ///< of the one given last
};

/// Whether a data set's config says that the program brings the batches.
[[nodiscard]] bool is_given(const DataConfig& config);

/// Always throws InputError at `place`: a config alone has no batches.
[[nodiscard]] std::unique_ptr<Dataset> open_given(const GivenDataConfig& config, const InputPlace& place);

}  // namespace stagecraft
