#include "engine/core/links.h"

namespace stagecraft {

std::vector<StageLink> links_of(const Model& model, const std::vector<std::pair<int, int>>& stage_layers,
                                const std::vector<BoundarySpec>& tensors, bool direct) {
  PassedValues layers;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const Origins& passes = model.layers[i]->facts().passes;
    std::vector<PassedValue>& behind = layers.emplace_back();
    for (const ValueSpec& value : tensors.at(i + 1).values) {
      behind.push_back({value.has_gradient(), passes.empty() ? std::nullopt : passes.at(behind.size())});
    }
  }
  std::vector<int> first_layers;
  for (const auto& [first, last] : stage_layers) first_layers.push_back(first);
  return stage_links(layers, first_layers, direct);
}

BoundarySpec spec_of(const StageLink& link, const BoundarySpec& before) {
  std::vector<ValueSpec> values;
  for (const std::size_t place : link.received) values.push_back(before.values.at(place));
  return BoundarySpec(std::move(values));
}

std::vector<SkipCosts> link_bytes(const Model& model, const std::vector<std::pair<int, int>>& stage_layers,
                                  std::int64_t micro_batch_size, bool direct) {
  const std::vector<BoundarySpec> tensors = boundaries(model, micro_batch_size);
  std::vector<SkipCosts> bytes;
  for (const StageLink& link : links_of(model, stage_layers, tensors, direct)) {
    const BoundarySpec& before = tensors[static_cast<std::size_t>(stage_layers[link.to.index()].first)];
    bytes.push_back({link.from, link.to, Bytes{spec_of(link, before).bytes()}});
  }
  return bytes;
}

}  // namespace stagecraft
