#pragma once

#include "models/data/dataset.h"
#include "models/model.h"
#include "models/tensors/counting_allocator.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// A data set as layer 0 reads it, whose batches are charged to the worker, though another thread reads them.
class ChargedDataset final : public Dataset {
 public:
  /// `pinned`: for copies to a device that nobody waits for.
  ChargedDataset(const Dataset& data, const Model& model, MemoryAccount& account, bool pinned)
      : data_(data), model_(model), account_(account), pinned_(pinned) {}
  std::int64_t size(Split split) const override { return data_.size(split); }
  SampleSpec sample() const override { return data_.sample(); }
  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    const ChargeTo charge(account_);
    return ready(model_.boundary_of(data_.inputs(split, indices)));
  }
  at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    const ChargeTo charge(account_);
    return ready(data_.targets(split, indices));
  }
  at::Tensor field(Split split, const std::string& name,
                   const std::vector<std::int64_t>& indices) const override {
    const ChargeTo charge(account_);
    return ready(data_.field(split, name, indices));
  }
  std::vector<LengthBucket> buckets(Split split) const override { return data_.buckets(split); }
  std::string fingerprint() const override { return data_.fingerprint(); }
  std::string summary() const override { return data_.summary(); }

 private:
  [[nodiscard]] at::Tensor ready(at::Tensor batch) const {
    return pinned_ ? batch.pin_memory() : std::move(batch);
  }

  const Dataset& data_;
  const Model& model_;
  MemoryAccount& account_;
  bool pinned_;
};

}  // namespace stagecraft
