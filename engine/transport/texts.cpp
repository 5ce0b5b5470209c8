#include "engine/transport/texts.h"

#include "base/error.h"

#include <climits>
#include <fmt/format.h>

#include <cstring>

namespace stagecraft::transport {

std::vector<int> gather_offsets(const std::vector<std::int64_t>& sizes) {
  std::vector<int> offsets;
  std::int64_t all = 0;
  for (const std::int64_t size : sizes) {
    offsets.push_back(static_cast<int>(all));
    STAGECRAFT_CHECK(size >= 0 && size <= INT_MAX - all,
                     fmt::format("{} ranks bring more than {} bytes to an all_gather, which is for small "
                                 "things; gather_text takes any length",
                                 sizes.size(), INT_MAX));
    all += size;
  }
  return offsets;
}

std::string bytes_of(const std::vector<double>& numbers) {
  std::string bytes(numbers.size() * sizeof(double), '\0');
  if (!numbers.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::vector<double> numbers_in(const std::string& bytes) {
  std::vector<double> numbers(bytes.size() / sizeof(double));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace stagecraft::transport
