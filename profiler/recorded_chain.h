#pragma once

// The way of micro-batches through a chain as recordings, one for each part of a row: what a run repeats that
// records its passes (engine/device/graphs.h). A run records the layers of one stage together; here each is started
// by itself, so that it can be timed.
//
// Two micro-batches in flight have a pool of memory each. Within a pool parts are recorded in the order in
// which they are started, so that memory which one has given back may be another's.

#include "engine/device/graphs.h"
#include "profiler/chain.h"

#include <memory>
#include <vector>

namespace stagecraft {

class RecordedChain {
 public:
  /// Records one slot per element of `data`. The chain should have run a micro-batch before, so that nothing is
  /// used for the first time, and outlives this object. Its gradients are to be cleared afterwards. Throws what the
  /// layers throw, and InternalError where the device cannot record them.
  RecordedChain(Chain& chain, const std::vector<ChainInput>& data, std::shared_ptr<DeviceGraphs> graphs);

  // Each starts what was recorded. The order within a slot: all rows' forwards, then from the last row
  // backwards each row's halves. Requires that the row runs, and for weights that it has some.
  void forward(std::size_t slot, int row) { part(slot, row).forward->launch(); }
  void backward_input(std::size_t slot, int row) { part(slot, row).backward_input->launch(); }
  /// Writes to the gradients where nothing was added since they were cleared, else adds to them.
  void backward_weight(std::size_t slot, int row);

 private:
  struct Part {
    std::unique_ptr<DeviceGraph> forward, backward_input, first_weight, later_weight;
    std::vector<bool> written;  ///< of the row's gradients, after the weight half
  };
  struct Slot {
    ChainWork work;  ///< with the data that forwards read again
    Bundle inputs;   ///< of row 0
    std::vector<Part> parts;
  };
  [[nodiscard]] Part& part(std::size_t slot, int row) {
    return slots_[slot].parts[static_cast<std::size_t>(row)];
  }
  void record(const ChainInput& data, Slot& slot);

  Chain& chain_;
  std::shared_ptr<DeviceGraphs> graphs_;
  std::vector<Slot> slots_;
};

}  // namespace stagecraft
