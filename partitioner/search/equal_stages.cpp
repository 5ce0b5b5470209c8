#include "partitioner/search/equal_stages.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace stagecraft::planning {
namespace {

/// Bisection ends where it no longer matters.
constexpr double kClose = 5e-4;

}  // namespace

std::vector<StageOrder> stage_orders(const ScheduleProgram& program) {
  std::vector<StageOrder> orders;
  for (const auto& replicas : program.placement.ranks) {
    StageOrder& order = orders.emplace_back();
    int backwards = 0;
    for (const Action& action : program.ranks[replicas.front().index()]) {
      if (action.op == Op::backward || action.op == Op::backward_input) ++backwards;
      if (action.op != Op::forward) continue;
      if (backwards > 0) ++order.forwards_behind;
      order.backwards_before = backwards;
    }
  }
  return orders;
}

/// A ring of w members crosses some level that holds so many, and its slowest link sets the pace: the fastest
/// such level's. Level by level, with c_k children at level k and n_k = c_0 ... c_k members inside, bytes
/// take 2 (1 / n_(k-1) - 1 / n_k) of a level's time per byte. With times that do not fall outwards the sum is
/// least where inner levels are full; a level counts as fast as the fastest from it outwards. Rounds: 2 (c_k
/// - 1) of its latency are at least 2 log2 c_k. A link that devices share only makes it longer.
ReductionFloor::ReductionFloor(const Network& network, int devices)
    : rings_(to_size(devices) + 1), levels_(rings_.size()) {
  struct Level {
    double size;  // devices of a node
    double latency, seconds_per_byte;
  };
  std::vector<Level> levels;
  double size = 1;
  for (const NetworkLevel& level : network.levels) {
    size *= std::max(1, level.count);
    levels.push_back({size, level.link.latency.value, 1 / level.link.bytes_per_second});
  }
  for (std::size_t k = levels.size(); k-- > 1;) {
    levels[k - 1].latency = std::min(levels[k - 1].latency, levels[k].latency);
    levels[k - 1].seconds_per_byte = std::min(levels[k - 1].seconds_per_byte, levels[k].seconds_per_byte);
  }
  for (std::size_t replicas = 2; replicas < rings_.size(); ++replicas) {
    const auto w = static_cast<double>(replicas);
    const auto crossed = std::ranges::find_if(levels, [&](const Level& level) { return level.size >= w; });
    if (crossed == levels.end()) break;  // there are no so many devices
    rings_[replicas] = {2 * (w - 1) * crossed->latency, 2 * (w - 1) / w * crossed->seconds_per_byte};
    double inside = 1;
    for (const Level& level : levels) {
      const double here = std::min(level.size, w);
      levels_[replicas].latency += 2 * std::log2(here / inside) * level.latency;
      levels_[replicas].seconds_per_byte += 2 * (1 / inside - 1 / here) * level.seconds_per_byte;
      inside = here;
    }
  }
}

EqualStages::EqualStages(const EqualStagesProblem& problem)
    : problem_(problem), layers_(problem.chain.layers()), reductions_(problem.network, problem.devices) {
  const ChainCosts& chain = problem_.chain;
  whole_ = chain.forward(0, layers_) + chain.backward_input(0, layers_);
  if (!problem_.split) whole_ += chain.backward_weight(0, layers_);
  whole_ /= problem_.speed;
  Link fastest{Seconds{kInfinite}, 0};
  for (const NetworkLevel& level : problem_.network.levels) {
    fastest.latency = std::min(fastest.latency, level.link.latency);
    fastest.bytes_per_second = std::max(fastest.bytes_per_second, level.link.bytes_per_second);
  }
  if (problem_.network.levels.empty() || problem_.cuttable < 2) return;
  Bytes smallest = chain.boundary(1);
  for (int i = 2; i < problem_.cuttable; ++i) smallest = std::min(smallest, chain.boundary(i));
  link_ = 2 * fastest.time(smallest).value;
}

double EqualStages::end(const Shape& shape, int last) const {
  const ChainCosts& chain = problem_.chain;
  double seconds = chain.step(0, last);
  if (problem_.split) seconds += chain.backward_weight(0, last);
  seconds /= problem_.speed;
  return seconds + reduction(shape, 0, 0, last);
}

double EqualStages::bound(const Shape& shape, int stage, int first, int last, double end) const {
  const int count = own_count(problem_.micro_batches, 0, shape.replicas);
  const ChainCosts& chain = problem_.chain;
  const double speed = problem_.speed;
  const double forward = chain.forward(first, last) / speed;
  const double weight = chain.backward_weight(first, last) / speed;
  double backward = chain.backward_input(first, last) / speed;
  const double own = forward + backward + weight;
  double back = chain.backward_input(0, first) / speed;
  if (!problem_.split) {
    backward += weight;
    back += chain.backward_weight(0, first) / speed;
  }
  // Nothing need come back to a stage that is frozen, and none of them waits for it.
  if (problem_.frozen) return count * own;
  const double head = chain.forward(0, first) / speed + stage * link_ / 2;
  const double tail = stage > 0 ? back + stage * link_ / 2 + end : 0;
  const double way = whole_ + (shape.stages - 1) * link_;
  const double after = chain.step(first, last) / speed + reduction(shape, stage, first, last);
  // What a rank does before the first backward has come, or after the last forward has left.
  // Forwards again: of all micro-batches, and of those whose backward is not the first.
  const int last_too = problem_.repeated == Recompute::all ? 1 : 0;
  const bool repeats = problem_.repeated != Recompute::none;
  const double again = repeats ? (count - 1 + last_too) * forward : 0;
  const double later = repeats ? std::max(0, count - 2 + last_too) * forward : 0;
  double more = std::max((count - 1) * forward, (count - 1) * backward + later);
  if (shape.orders != nullptr) {
    const StageOrder& order = (*shape.orders)[to_size(stage)];
    more = std::max({more, (count - 1) * backward + later + order.forwards_behind * forward,
                     (count - 1) * forward + order.backwards_before * backward});
  }
  const double way_and_more = way + more;
  // What ends with this rank begins with it, too, where the step before may still be under way elsewhere.
  const double before = problem_.goes_on ? 0 : head;
  return std::max({head + count * (forward + backward) + again + tail, before + count * own + again + after,
                   way_and_more + end, way_and_more - back - stage * link_ / 2 + after - (head - before)});
}

int EqualStages::furthest(const Shape& shape, int stage, int first, double seconds, double end) const {
  if (stage + 1 == shape.stages) {
    const bool fits = shape.fits == nullptr || (*shape.fits)(stage, first, layers_);
    return fits && bound(shape, stage, first, layers_, end) <= seconds ? layers_ : 0;
  }
  int furthest = 0;
  for (int last = first + 1; last <= problem_.cuttable - (shape.stages - 1 - stage); ++last) {
    if (bound(shape, stage, first, last, end) > seconds) break;
    if (shape.fits == nullptr || (*shape.fits)(stage, first, last)) furthest = last;
  }
  return furthest;
}

std::optional<std::vector<int>> EqualStages::behind(const Shape& shape, int last, double seconds,
                                                    double end) const {
  std::vector<int> cuts{last};
  for (int stage = 1; stage < shape.stages; ++stage) {
    cuts.push_back(furthest(shape, stage, cuts.back(), seconds, end));
    if (cuts.back() == 0) return std::nullopt;
  }
  cuts.pop_back();  // the end of the last stage
  return cuts;
}

/// The more layers the first stage has the longer a step's end, and the fewer are left: of a range of first
/// stages none is better than the longest with the end of the shortest.
std::optional<std::vector<int>> EqualStages::among(const Shape& shape, int low, int high,
                                                   double seconds) const {
  auto cuts = behind(shape, high, seconds, end(shape, low));
  if (!cuts || low == high) return cuts;
  const int middle = (low + high) / 2;
  if (auto found = among(shape, middle + 1, high, seconds)) return found;
  return among(shape, low, middle, seconds);
}

std::optional<std::vector<int>> EqualStages::within(const Shape& shape, double seconds) const {
  if (shape.stages == 1) {
    if (furthest(shape, 0, 0, seconds, end(shape, layers_)) == 0) return std::nullopt;
    return std::vector<int>{};
  }
  const int most = furthest(shape, 0, 0, seconds, end(shape, 1));
  if (most == 0) return std::nullopt;
  return among(shape, 1, most, seconds);
}

EqualStages::Least EqualStages::least(const Shape& shape, double to_beat) const {
  Least least;
  double high = to_beat;
  least.cuts = within(shape, high);
  if (!least.cuts) return {to_beat, {}};
  if (to_beat == kInfinite) {
    high = std::max(whole_, 1e-9);
    while (!(least.cuts = within(shape, high))) high *= 2;
    high = std::min(high, std::numeric_limits<double>::max());
  }
  least.bound = whole_ + (shape.stages - 1) * link_;
  while (high > least.bound * (1 + kClose)) {
    const double middle = (high + least.bound) / 2;
    if (auto cuts = within(shape, middle)) {
      high = middle;
      least.cuts = std::move(cuts);
    } else {
      least.bound = middle;
    }
  }
  return least;
}

}  // namespace stagecraft::planning
