#pragma once

// What goes from one stage of a model directly to another (schedules/program/stage_links.h), found from its
// layers.

#include "models/model.h"
#include "schedules/costs/costs.h"
#include "schedules/program/stage_links.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace stagecraft {

/// `stage_layers[s]` = [first, last) of stage s; `tensors` are boundaries() of the model, of any size; `direct` as
/// in stage_links.
[[nodiscard]] std::vector<StageLink> links_of(const Model& model,
                                              const std::vector<std::pair<int, int>>& stage_layers,
                                              const std::vector<BoundarySpec>& tensors, bool direct);

/// What a link carries, `before` being the bundle before its second stage.
[[nodiscard]] BoundarySpec spec_of(const StageLink& link, const BoundarySpec& before);

/// The links with their bytes, for full micro-batches.
[[nodiscard]] std::vector<SkipCosts> link_bytes(const Model& model,
                                                const std::vector<std::pair<int, int>>& stage_layers,
                                                std::int64_t micro_batch_size, bool direct);

}  // namespace stagecraft
