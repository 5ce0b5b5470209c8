#pragma once

// An array of numbers in a file that stays open, read where somebody asks for it. (It is not mapped: a file that is
// cut off in the middle of a run, or a disk that fails, would end the process.)

#include "base/error.h"
#include "base/storage.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// Threads: any, once made. Errors are InputErrors at `place` that name the file.
class StoredArray {
 public:
  /// Requires: the file has all of it, from byte `begin` on.
  StoredArray(std::shared_ptr<const StoredFile> file, std::string path, InputPlace place, std::uint64_t begin,
              at::ScalarType dtype, std::vector<std::int64_t> shape);

  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  /// Its bytes from `offset` on.
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;
  /// The rows with these numbers, as they are stored. Requires at least one dimension.
  [[nodiscard]] at::Tensor rows(const std::vector<std::int64_t>& numbers) const;
  /// Rows first, first + 1, ...
  [[nodiscard]] at::Tensor rows(std::int64_t first, std::int64_t count) const;

 private:
  [[nodiscard]] at::Tensor room_for(std::int64_t rows) const;

  std::shared_ptr<const StoredFile> file_;
  std::string path_;
  InputPlace place_;
  std::uint64_t begin_;
  at::ScalarType dtype_;
  std::vector<std::int64_t> shape_;
  std::uint64_t bytes_, row_bytes_ = 0;
};

}  // namespace stagecraft
