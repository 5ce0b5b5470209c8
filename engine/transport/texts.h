#pragma once

// Texts of any length over calls that take so many bytes at once, and numbers as texts.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::transport {

/// `call`(first byte, bytes) for one piece after another, none longer than `most`.
template <class Call>
void each_piece(std::string& text, std::size_t most, const Call& call) {
  for (std::size_t begin = 0; begin < text.size(); begin += most) {
    call(text.data() + begin, std::min(most, text.size() - begin));
  }
}

/// Where each rank's part begins in what MPI_Allgatherv fills, from the parts' sizes. Throws InternalError
/// where they are too long together, the same on all ranks.
[[nodiscard]] std::vector<int> gather_offsets(const std::vector<std::int64_t>& sizes);

/// Numbers as their bytes, and back: what all_gather sends as texts.
[[nodiscard]] std::string bytes_of(const std::vector<double>& numbers);
[[nodiscard]] std::vector<double> numbers_in(const std::string& bytes);

}  // namespace stagecraft::transport
