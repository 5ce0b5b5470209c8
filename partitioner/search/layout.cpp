#include "partitioner/search/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>

namespace stagecraft::planning {
namespace {

bool equally_wide(const std::vector<int>& widths) {
  return std::ranges::all_of(widths, [&](int replicas) { return replicas == widths.front(); });
}

Placement pattern(PlacementKind kind, int positions, int stages_per_rank) {
  if (kind == PlacementKind::straight) return Placement::straight(positions);
  return kind == PlacementKind::loop ? Placement::looped(positions, stages_per_rank)
                                     : Placement::zigzag(positions, stages_per_rank);
}

/// Every block size of equally wide positions; 1 where there is one replica or one position.
void add_blocks(std::vector<Layout>& list, const Layout& layout) {
  const int positions = layout.positions();
  for (int block = 1; block <= positions; ++block) {
    if (positions % block != 0 || (block > 1 && !equally_wide(layout.widths))) continue;
    list.push_back(layout);
    list.back().block = block;
  }
}

/// How many ways there are to give positions of at least one device each up to so many devices.
std::int64_t compositions(int devices, int most_positions, std::int64_t enough) {
  // Of n devices into p positions: n - 1 over p - 1.
  std::int64_t all = 0;
  for (int n = 1; n <= devices; ++n) {
    std::int64_t ways = 1;
    for (int p = 1; p <= std::min(n, most_positions); ++p) {
      all += ways;
      if (all > enough) return all;
      ways = ways * (n - p) / p;
    }
  }
  return all;
}

}  // namespace

int Layout::devices() const { return std::accumulate(widths.begin(), widths.end(), 0); }

Placement Layout::placement() const {
  const Placement base = pattern(kind, positions(), stages_per_rank);
  std::vector<int> before(widths.size() + 1, 0);
  for (std::size_t i = 0; i < widths.size(); ++i) before[i + 1] = before[i] + widths[i];
  Placement placement;
  for (const auto& held_at : base.ranks) {
    const int position = held_at.front().value;
    const int replicas = widths[to_size(position)];
    auto& ranks = placement.ranks.emplace_back();
    for (int replica = 0; replica < replicas; ++replica) {
      const int block_begin = position / block * block * replicas;
      ranks.emplace_back(block == 1 ? before[to_size(position)] + replica
                                    : block_begin + replica * block + position % block);
    }
  }
  return placement;
}

std::string Layout::name() const {
  std::string name = enum_name(kind);
  if (replicated()) {
    name = equally_wide(widths) ? fmt::format("{} x {}", widths.size(), widths.front())
                                : fmt::format("{}", fmt::join(widths, "-"));
    if (block > 1) name += block == positions() ? ", by pipeline" : fmt::format(", in blocks of {}", block);
    if (kind != PlacementKind::straight) name += fmt::format(", {}", enum_name(kind));
  }
  return kind == PlacementKind::straight ? name : fmt::format("{} of {}", name, stages_per_rank);
}

Layout straight_layout(PlacementKind kind, int stages_per_rank, int positions) {
  return {kind, stages_per_rank, std::vector<int>(to_size(positions), 1), 1};
}

bool few_widths(int stages_per_rank, const LayoutLimits& limits) {
  const int most_positions = std::min(limits.devices, limits.most_stages / stages_per_rank);
  return compositions(limits.devices, most_positions, limits.most_layouts) <= limits.most_layouts;
}

Layouts replicated_layouts(PlacementKind kind, int stages_per_rank, const LayoutLimits& limits) {
  Layouts layouts;
  Layout layout{kind, stages_per_rank, limits.widths, 1};
  const auto wanted = [&](int positions) {
    const int stages = positions * stages_per_rank;
    return stages <= limits.most_stages && (!limits.stages || *limits.stages == stages);
  };
  if (!limits.widths.empty()) {
    if (layout.replicated() && layout.devices() <= limits.devices && wanted(layout.positions()) &&
        (stages_per_rank == 1 || equally_wide(layout.widths))) {
      add_blocks(layouts.list, layout);
    }
    return layouts;
  }
  const int most_positions = std::min(limits.devices, limits.most_stages / stages_per_rank);
  layouts.all = few_widths(stages_per_rank, limits);
  if (stages_per_rank > 1 || !layouts.all) {
    for (int positions = 1; positions <= most_positions; ++positions) {
      if (!wanted(positions)) continue;
      for (int replicas = 2; replicas * positions <= limits.devices; ++replicas) {
        layout.widths.assign(to_size(positions), replicas);
        add_blocks(layouts.list, layout);
      }
    }
    layouts.all = layouts.all || stages_per_rank > 1;
    return layouts;
  }
  const std::function<void(int)> extend = [&](int left) {
    if (!layout.widths.empty() && layout.replicated() && wanted(layout.positions())) {
      add_blocks(layouts.list, layout);
    }
    if (layout.positions() == most_positions) return;
    for (int replicas = 1; replicas <= left; ++replicas) {
      layout.widths.push_back(replicas);
      extend(left - replicas);
      layout.widths.pop_back();
    }
  };
  extend(limits.devices);
  return layouts;
}

}  // namespace stagecraft::planning
