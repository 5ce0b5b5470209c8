#pragma once

// The shortest cycle in a graph of lists, some of whose actions wait for actions of other lists: the least
// that shows why a program cannot finish.

#include <cstdint>
#include <vector>

namespace stagecraft {

/// What waits in one list. An action is a number; those of list q are first[q] .. first[q + 1] - 1.
struct WaitingLists {
  struct Wait {
    std::int32_t node = 0;  ///< may complete only after all its targets
    std::size_t targets_begin = 0;
    std::size_t targets_end = 0;
  };
  std::vector<std::int32_t> first;
  std::vector<std::vector<Wait>> waits;  ///< per list, by node
  std::vector<std::int32_t> targets;     ///< nodes of other lists
};

/// A cycle of fewest waits, in waiting order: the i-th waits for a target that is the (i+1)-th or stands
/// behind it in its list. `known` is such a cycle, returned when none is shorter. No list has two of the
/// waits: if one had, one of the two ways between them could be left out. The search takes time linear in the
/// waits for each list that it starts from and each length tried; it stops when that has come to `most_work`
/// steps, and the result is then the shortest found.
[[nodiscard]] std::vector<std::int32_t> shortest_cycle(const WaitingLists& lists,
                                                       std::vector<std::int32_t> known,
                                                       std::int64_t most_work = 50'000'000);

}  // namespace stagecraft
