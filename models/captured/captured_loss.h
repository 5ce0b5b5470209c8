#pragma once

// The loss that a captured model brings (docs/reference/model_folder.md): a graph from the model's output and
// fields of the batch to one number, and to the terms that it reports.

#include "models/captured/model_folder.h"
#include "models/losses/loss.h"

#include <memory>

namespace stagecraft {

/// `folder` has a loss. Rounds as PyTorch does: the loss in the type it was captured in, its gradient from
/// the micro-batch's share.
[[nodiscard]] std::shared_ptr<const Loss> make_captured_loss(
    const std::shared_ptr<const captured::ModelFolder>& folder);

}  // namespace stagecraft
