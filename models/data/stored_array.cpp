#include "models/data/stored_array.h"

#include "base/files.h"
#include "models/data/data_file.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <utility>

namespace stagecraft {

StoredArray::StoredArray(std::shared_ptr<const StoredFile> file, std::string path, InputPlace place,
                         std::uint64_t begin, at::ScalarType dtype, std::vector<std::int64_t> shape)
    : file_(std::move(file)),
      path_(std::move(path)),
      place_(std::move(place)),
      begin_(begin),
      dtype_(dtype),
      shape_(std::move(shape)),
      bytes_(static_cast<std::uint64_t>(c10::multiply_integers(shape_)) * c10::elementSize(dtype)) {
  if (!shape_.empty() && shape_.front() > 0) row_bytes_ = bytes_ / static_cast<std::uint64_t>(shape_.front());
}

void StoredArray::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  const std::string what = read_exactly(*file_, begin_ + offset, to, bytes);
  if (!what.empty()) throw data_file_error(place_, path_, what);
}

at::Tensor StoredArray::rows(const std::vector<std::int64_t>& numbers) const {
  at::Tensor rows = room_for(static_cast<std::int64_t>(numbers.size()));
  auto* to = static_cast<char*>(rows.mutable_data_ptr());
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t run = 1;  // rows that lie behind each other are read at once
    while (i + run < numbers.size() && numbers[i + run] == numbers[i + run - 1] + 1) ++run;
    read(static_cast<std::uint64_t>(numbers[i]) * row_bytes_, to, run * row_bytes_);
    to += run * row_bytes_;
    i += run;
  }
  return rows;
}

at::Tensor StoredArray::rows(std::int64_t first, std::int64_t count) const {
  at::Tensor rows = room_for(count);
  read(static_cast<std::uint64_t>(first) * row_bytes_, rows.mutable_data_ptr(), rows.nbytes());
  return rows;
}

at::Tensor StoredArray::room_for(std::int64_t rows) const {
  std::vector<std::int64_t> shape = shape_;
  shape.front() = rows;
  return at::empty(shape, dtype_);
}

}  // namespace stagecraft
