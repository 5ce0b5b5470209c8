#pragma once

// A copy of the state that one rank saves, so that steps go on while it is written. Its memory is the same for all
// snapshots of a run, and is none of what is counted as tensors' (counting_allocator.h).

#include "engine/run/save/checkpoint_files.h"

#include <cstddef>
#include <map>
#include <vector>

namespace stagecraft {

class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// In place of what it has. Throws InputError where there is no memory for it.
  void take(const Worker& worker, const Model& model, const std::vector<int>& layers);
  /// Any thread, until the next take().
  [[nodiscard]] const SavedLayer& layer(int index) const { return layers_.at(index); }

 private:
  void make_room(std::size_t bytes);

  std::map<int, SavedLayer> layers_;  ///< their tensors are in the memory
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace stagecraft
