#pragma once

// A data set that is only told of: what a rank needs to know of it whose stages read none of it. Such a rank
// holds nothing of the data, and its machine needs no copy of the files.

#include "base/describe.h"
#include "models/data/dataset.h"

#include <memory>
#include <string>

namespace stagecraft {

/// A field that it has.
struct FieldFacts {
  std::string name;
  std::vector<std::int64_t> shape;  ///< of one sample
  int dtype = 0;                    ///< a value of c10::ScalarType
};
template <class V>
void describe(V& v, FieldFacts& f) {
  v.required("name", f.name, "of the field");
  v.required("shape", f.shape, "of one sample");
  v.required("dtype", f.dtype, "LibTorch's number for it");
}

/// As LengthBucket.
struct BucketFacts {
  std::int64_t length = 0;
  std::int64_t samples = 0;
};
template <class V>
void describe(V& v, BucketFacts& b) {
  v.required("length", b.length, "that its samples are cut to; 0: the whole");
  v.required("samples", b.samples, "in it");
}

struct DataFacts {
  std::int64_t training_samples = 0;
  std::int64_t validation_samples = 0;
  std::vector<std::int64_t> shape;
  bool tokens = false;  ///< of inputs; otherwise numbers
  std::int64_t classes = 0;
  int targets = 0;  ///< a value of Targets
  std::vector<FieldFacts> fields;
  std::vector<BucketFacts> training_buckets, validation_buckets;
  std::string fingerprint;
  std::string summary;
};
template <class V>
void describe(V& v, DataFacts& f) {
  v.required("training_samples", f.training_samples, "of an epoch");
  v.required("validation_samples", f.validation_samples, "0: none");
  v.required("shape", f.shape, "of one sample");
  v.required("tokens", f.tokens, "inputs are tokens, not numbers");
  v.required("classes", f.classes, "of the targets");
  v.required("targets", f.targets, "their kind", json::between(0, 3));
  v.required("fields", f.fields, "besides inputs and targets");
  v.required("training_buckets", f.training_buckets, "by length; none: no sample is cut");
  v.required("validation_buckets", f.validation_buckets, "the same of validation");
  v.required("fingerprint", f.fingerprint, "of the bytes read");
  v.required("summary", f.summary, "for people");
}

[[nodiscard]] DataFacts facts_of(const Dataset& data);

/// Answers what the facts say; asked for samples it throws InternalError.
[[nodiscard]] std::unique_ptr<Dataset> dataset_of(DataFacts facts);

}  // namespace stagecraft
