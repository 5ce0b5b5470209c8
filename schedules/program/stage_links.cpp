#include "schedules/program/stage_links.h"

#include "base/error.h"

#include <algorithm>
#include <map>

namespace stagecraft {
namespace {

class Linker {
 public:
  Linker(const PassedValues& layers, const std::vector<int>& first_layers)
      : layers_(layers), first_layers_(first_layers), bypassing_(first_layers.size()) {}

  void find_bypassing() {
    for (std::size_t stage = 1; stage + 1 < stages(); ++stage) {
      for (std::size_t place = 0; place < before(stage).size(); ++place) {
        if (!before(stage)[place].has_gradient) continue;
        if (const auto behind = passed(stage, place)) bypassing_[stage].emplace(place, *behind);
      }
    }
    // A stage that is passed by may leave its neighbours' cut without a value: then nothing bypasses either.
    for (std::size_t stage = 1; stage < stages();) {
      if (has_gradient_left(stage)) {
        ++stage;
        continue;
      }
      bypassing_[stage - 1].clear();
      bypassing_[stage].clear();
      stage = 1;
    }
  }

  [[nodiscard]] std::vector<StageLink> links() const {
    std::vector<StageLink> neighbours(stages() - 1);
    std::map<Skip, StageLink> skips;
    for (std::size_t stage = 0; stage + 1 < stages(); ++stage) {
      neighbours[stage].from = StageId{stage};
      neighbours[stage].to = StageId{stage + 1};
      for (std::size_t place = 0; place < before(stage + 1).size(); ++place) {
        if (bypassed(stage, place)) continue;  // from further back
        std::size_t to = stage + 1;
        std::size_t received = place;
        for (auto on = bypassing_[to].find(received); on != bypassing_[to].end();
             on = bypassing_[to].find(received)) {
          received = on->second;
          ++to;
        }
        StageLink& link = to == stage + 1 ? neighbours[stage] : skips[{StageId{stage}, StageId{to}}];
        link.from = StageId{stage};
        link.to = StageId{to};
        link.sent.push_back(place);
        link.received.push_back(received);
      }
    }
    for (auto& [ends, link] : skips) neighbours.push_back(std::move(link));
    return neighbours;
  }

 private:
  [[nodiscard]] std::size_t stages() const { return first_layers_.size(); }
  /// The bundle before a stage that is not the first.
  [[nodiscard]] const std::vector<PassedValue>& before(std::size_t stage) const {
    return layers_.at(static_cast<std::size_t>(first_layers_[stage]) - 1);
  }

  /// Where a value is behind a stage's last layer, if all its layers pass it by.
  [[nodiscard]] std::optional<std::size_t> passed(std::size_t stage, std::size_t place) const {
    const auto end = static_cast<std::size_t>(first_layers_[stage + 1]);
    for (auto layer = static_cast<std::size_t>(first_layers_[stage]); layer < end; ++layer) {
      const std::vector<PassedValue>& behind = layers_.at(layer);
      const auto same = std::find_if(behind.begin(), behind.end(),
                                     [&](const PassedValue& value) { return value.passes == place; });
      if (same == behind.end()) return std::nullopt;
      place = static_cast<std::size_t>(same - behind.begin());
    }
    return place;
  }

  /// Whether the value at `place` behind a stage bypassed it.
  [[nodiscard]] bool bypassed(std::size_t stage, std::size_t place) const {
    return std::any_of(bypassing_[stage].begin(), bypassing_[stage].end(),
                       [&](const auto& entry) { return entry.second == place; });
  }

  /// In what goes to a stage from its neighbour.
  [[nodiscard]] bool has_gradient_left(std::size_t stage) const {
    for (std::size_t place = 0; place < before(stage).size(); ++place) {
      if (before(stage)[place].has_gradient && !bypassing_[stage].contains(place) &&
          !bypassed(stage - 1, place)) {
        return true;
      }
    }
    return bypassing_[stage].empty() && bypassing_[stage - 1].empty();
  }

  const PassedValues& layers_;
  const std::vector<int>& first_layers_;
  /// By stage: the places before it of the values that bypass it, and where they are behind it.
  std::vector<std::map<std::size_t, std::size_t>> bypassing_;
};

}  // namespace

std::vector<StageLink> stage_links(const PassedValues& layers, const std::vector<int>& first_layers,
                                   bool direct) {
  STAGECRAFT_CHECK(!first_layers.empty(), "a pipeline has a stage");
  Linker linker(layers, first_layers);
  if (direct) linker.find_bypassing();
  return linker.links();
}

std::vector<Skip> skips_of(const std::vector<StageLink>& links) {
  std::vector<Skip> skips;
  for (const StageLink& link : links) {
    if (link.is_skip()) skips.push_back({link.from, link.to});
  }
  return skips;
}

}  // namespace stagecraft
