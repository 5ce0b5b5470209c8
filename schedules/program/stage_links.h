#pragma once

// Which values go from which stage to which. Between two layers goes a bundle of values; a value that a layer
// passes by is the same value in the bundles before and behind it. A stage whose layers all pass a value by has
// no need of it: the value, and its gradient back, go directly from the stage that makes it to the one that
// reads it (ProgramHeader::skips).
//
// A value that a layer reads and that is read again behind it leaves that layer as a value of its own, so a value
// goes from one stage to one other, and no two gradients of it are ever added between stages.

#include "schedules/program/program.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace stagecraft {

/// One value of the bundle behind a layer, and whether the layer passes it by.
struct PassedValue {
  bool has_gradient = true;
  std::optional<std::size_t> passes{};  ///< its place in the bundle before the layer, where that passes it by
};

/// By layer.
using PassedValues = std::vector<std::vector<PassedValue>>;

/// What goes from one stage directly to another: places in the bundle behind the last layer of `from`, ascending,
/// and those of the same values in the bundle before the first layer of `to`. At least one of the values has a
/// gradient; of a skip all do.
struct StageLink {
  StageId from{}, to{};
  std::vector<std::size_t> sent, received;

  [[nodiscard]] bool is_skip() const { return to.value > from.value + 1; }
};

/// The links between neighbours in the order of their stages, then the skips, ascending. `first_layers`: of each
/// stage; the last stage reads all that comes to it. `direct`: whether values without a reader on a stage bypass
/// it. Otherwise, and where a value has no gradient or its stages' neighbours would be left with none, it goes
/// through, and there is no skip for it.
[[nodiscard]] std::vector<StageLink> stage_links(const PassedValues& layers,
                                                 const std::vector<int>& first_layers, bool direct);

/// Those of the links that are skips.
[[nodiscard]] std::vector<Skip> skips_of(const std::vector<StageLink>& links);

}  // namespace stagecraft
