#include "profiler/recorded_chain.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

RecordedChain::RecordedChain(Chain& chain, const std::vector<ChainInput>& data,
                             std::shared_ptr<DeviceGraphs> graphs)
    : chain_(chain), graphs_(std::move(graphs)), slots_(data.size()) {
  for (std::size_t i = 0; i < data.size(); ++i) record(data[i], slots_[i]);
}

void RecordedChain::record(const ChainInput& data, Slot& slot) {
  const DeviceGraphs::Pool pool = graphs_->make_pool();
  slot.parts.resize(static_cast<std::size_t>(chain_.rows()));
  slot.inputs = chain_.begin(data, slot.work);
  ChainWork work = slot.work;  // the loss lets go of its targets
  Bundle bundle = slot.inputs;
  for (int row = 0; row < chain_.rows(); ++row) {
    if (!chain_.runs(row)) continue;
    slot.parts[static_cast<std::size_t>(row)].forward =
        graphs_->record(pool, [&] { bundle = chain_.forward(row, bundle, work, /*micro_batch=*/0); });
  }
  chain_.clear_gradients();
  Bundle gradients;
  for (int row = chain_.rows() - 1; row >= 0; --row) {
    if (!chain_.runs(row) || chain_.frozen(row)) continue;
    Part& part = slot.parts[static_cast<std::size_t>(row)];
    Kept& kept = work.kept[static_cast<std::size_t>(row)];
    part.backward_input =
        graphs_->record(pool, [&] { gradients = chain_.backward_input(row, gradients, work); });
    if (chain_.has_weights(row)) {
      const Kept found = kept;
      part.first_weight = graphs_->record(pool, [&] { chain_.backward_weight(row, work); });
      kept = found;
      part.later_weight = graphs_->record(pool, [&] { chain_.backward_weight(row, work); });
      part.written = chain_.written(row);
    }
    kept.clear();
  }
}

void RecordedChain::backward_weight(std::size_t slot, int row) {
  Part& its = part(slot, row);
  const std::vector<bool>& written = chain_.written(row);
  const bool first = std::none_of(written.begin(), written.end(), [](bool one) { return one; });
  (first ? its.first_weight : its.later_weight)->launch();
  chain_.set_written(row, its.written);
}

}  // namespace stagecraft
