#pragma once

// A stretch of time cut into equal columns, and how much of each is what: for pictures so dense that single
// boxes could not be seen.

#include "schedules/pictures/layout.h"

#include <array>

namespace stagecraft::pictures {

/// Per style the part of a column's time; what is missing to 1 is idle. Sends do not count.
using Shares = std::array<float, kLooks>;

/// `columns` equal columns of [begin, end].
[[nodiscard]] std::vector<Shares> shares_of(const Row& row, double begin, double end, std::size_t columns);

/// "forward 33 %, backward 60 %, idle 7 %".
[[nodiscard]] std::string describe_shares(const Shares& shares);

}  // namespace stagecraft::pictures
