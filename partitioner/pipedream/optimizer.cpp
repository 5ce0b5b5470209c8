#include "partitioner/pipedream/optimizer.h"

#include "base/error.h"
#include "partitioner/pipedream/level_solver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace stagecraft::pipedream {
namespace {

constexpr double kMostWork = 5e10;  // comparisons: well under a minute
constexpr int kMostMachines = 1'000'000;
constexpr std::size_t kSideBySide = 16;  // beginnings solved together: their values stay in the cache

void validate(const Options& options) {
  const auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  if (options.levels.empty()) throw InputError("expected at least one level of machines");
  double devices = 1;
  for (const Level& level : options.levels) {
    devices *= level.machines;
    if (level.machines < 1 || devices > kMostMachines) {
      throw InputError(fmt::format("a level of {} machines: expected 1 to {}, all levels together",
                                   level.machines, kMostMachines));
    }
    if (!positive(level.bytes_per_second)) {
      throw InputError(fmt::format("expected a bandwidth above 0, found {}", level.bytes_per_second));
    }
  }
  if (options.memory && !positive(*options.memory)) {
    throw InputError(fmt::format("expected a memory above 0, found {}", *options.memory));
  }
  if (options.compression && !positive(*options.compression)) {
    throw InputError(
        fmt::format("expected an activation compression ratio above 0, found {}", *options.compression));
  }
}

/// States of which each contains the one before, from the first to the last, as many as can be had greedily.
/// Every state comparable to all others is among them.
StateGraph chain_of(const StateGraph& states) {
  StateGraph chain;
  chain.graph = states.graph;
  for (const State& state : states.states) {
    if (!chain.states.empty() && !state.before.includes(chain.states.back().before)) continue;
    std::vector<int> contained(chain.states.size());
    std::iota(contained.begin(), contained.end(), 0);
    chain.states.push_back(state);
    chain.contained.push_back(std::move(contained));
  }
  return chain;
}

class Optimizer {
 public:
  Optimizer(const StateGraph& states, const Options& options)
      : states_(states), options_(options), last_state_(static_cast<int>(states.states.size()) - 1) {
    for (const Level& level : options_.levels) result_.devices *= level.machines;
    result_.one_device = states_.states.back().compute;
    result_.data_parallel = data_parallel();
    refuse_endless();
  }

  /// `known`: the bottleneck of some plan.
  Result run(double known) {
    result_.bottleneck = bottleneck(known);
    if (result_.bottleneck == kImpossible) refuse_impossible();
    result_.stages = split(options_.levels.size() - 1, 0, last_state_);
    result_.devices_left = result_.devices;
    for (const Stage& stage : result_.stages) result_.devices_left -= stage.devices();
    return std::move(result_);
  }

  /// The bottleneck alone, kImpossible where there is no plan.
  double bottleneck(double known = kImpossible) {
    take_known(std::min(known, options_.straight ? kImpossible : result_.data_parallel));
    solve();
    return solvers_.back().solve({0}, known_).at(0, last_state_, options_.levels.back().machines);
  }

 private:
  void refuse_endless() const {
    double pairs = 0;
    for (const std::vector<int>& within : states_.contained) pairs += static_cast<double>(within.size());
    double work = 0;
    for (std::size_t level = 0; level < options_.levels.size(); ++level) {
      const double machines = options_.levels[level].machines;
      const double beginnings =
          level + 1 == options_.levels.size() ? 1 : static_cast<double>(states_.states.size()) / 3;
      work += pairs * beginnings * machines * machines / 2;
    }
    if (work > kMostWork) {
      throw RefusedError(
          fmt::format("{} places to cut on {} devices are {:.0e} comparisons for PipeDream's "
                      "algorithm; at most {:.0e} are made: plan for fewer devices",
                      states_.states.size(), result_.devices, work, kMostWork));
    }
  }

  [[noreturn]] void refuse_impossible() const {
    std::string why;
    if (options_.straight && !options_.fewer_machines) {
      why = fmt::format(
          " a straight pipeline uses every device, and {} places to cut may not do for {}; let "
          "machines be left over, or use a smaller cluster.",
          states_.states.size(), result_.devices);
    }
    if (options_.memory) {
      why += fmt::format(" With {:.4g} bytes per device every way to cut keeps too much on some stage.",
                         *options_.memory);
    }
    throw RefusedError("no plan under PipeDream's model:" + why);
  }

  /// All nodes on all devices, a level at a time.
  [[nodiscard]] double data_parallel() const {
    double time = result_.one_device;
    double within = 1;
    for (const Level& level : options_.levels) {
      const double m = level.machines;
      time =
          (time + 4 * (m - 1) * states_.states.back().parameters / (level.bytes_per_second * m) / within) / m;
      within = m;
    }
    return time;
  }

  void take_known(double seconds) {
    if (seconds == kImpossible) return;
    constexpr double kRounding = 1e-9;
    known_.seconds = seconds * (1 + kRounding);
    known_.slack = result_.devices * known_.seconds * (1 + kRounding) - result_.one_device;
  }

  void solve() {
    const std::size_t levels = options_.levels.size();
    stretches_.reserve(levels);  // solvers refer to them
    stretches_.push_back(one_device_stretches());
    for (std::size_t level = 0; level < levels; ++level) {
      solvers_.emplace_back(states_, options_, level, stretches_[level]);
    }
    for (std::size_t level = 0; level + 1 < levels; ++level) stretches_.push_back(solved_stretches(level));
  }

  [[nodiscard]] Stretches one_device_stretches() const {
    Stretches stretches(states_.states.size());
    for (int state = 0; state <= last_state_; ++state) {
      stretches.at(0, state) = states_.at(state).compute;
      for (const int within : states_.contained[to_size(state)]) {
        stretches.at(within + 1, state) = states_.between(within + 1, state, &State::compute);
      }
    }
    return stretches;
  }

  /// Where a level's stretches may begin in a plan as good as the known one: where one of the level outside
  /// does, or where that one may cut.
  [[nodiscard]] std::vector<Begin> begins_at(std::size_t level) const {
    double devices = 1;  // of one machine of the level outside
    for (std::size_t l = 0; l <= level; ++l) devices *= options_.levels[l].machines;
    std::vector<Begin> begins{0};
    for (int cut = 0; cut < last_state_; ++cut) {
      if (!known_.allows(states_.at(cut).compute, devices)) continue;
      double copies = 1;
      for (std::size_t outer = options_.levels.size() - 1; outer > level; --outer) {
        const int most = options_.straight ? 1 : options_.levels[outer].machines - 1;
        if (most > 0 && solvers_[outer].transfer(cut, most) <= known_.seconds * copies) {
          begins.push_back(cut + 1);
          break;
        }
        copies *= options_.levels[outer].machines;
      }
    }
    return begins;
  }

  [[nodiscard]] Stretches solved_stretches(std::size_t level) const {
    Stretches stretches(states_.states.size());
    const std::vector<Begin> begins = begins_at(level);
    for (std::size_t first = 0; first < begins.size(); first += kSideBySide) {
      const std::size_t last = std::min(first + kSideBySide, begins.size());
      const Bottlenecks solved =
          solvers_[level].solve({&begins[first], &begins[first] + (last - first)}, known_);
      for (int state = 0; state <= last_state_; ++state) {
        for (std::size_t n = 0; n < solved.begins().size(); ++n) {
          stretches.at(solved.begins()[n], state) = solved.at(n, state, options_.levels[level].machines);
        }
      }
    }
    return stretches;
  }

  /// The stages of a stretch on all machines of a level, first to last.
  [[nodiscard]] std::vector<Stage> split(std::size_t level, Begin begin, int end) const {
    const LevelSolver& solver = solvers_[level];
    const Bottlenecks solved = solver.solve({begin}, known_);
    std::vector<std::vector<Stage>> parts;  // last to first
    for (int machines = options_.levels[level].machines, state = end; state >= 0;) {
      const LastStage last = solver.last_stage(solved, 0, state, machines);
      const bool first = last.cut < 0;
      const Begin own_begin = first ? begin : last.cut + 1;
      parts.push_back(level == 0 ? std::vector{stage(own_begin, state)} : split(level - 1, own_begin, state));
      const StageLevel how{
          last.replicas, solver.all_reduce(own_begin, state, last.replicas, first),
          first ? 0
                : std::max(solver.transfer(last.cut, last.replicas), solver.transfer(state, last.replicas))};
      for (Stage& part : parts.back()) {
        part.levels.push_back(how);
        part.time = std::max((part.time + how.all_reduce) / how.replicas, how.transfer);
      }
      machines = last.machines - last.replicas;
      state = last.cut;
    }
    std::vector<Stage> stages;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      stages.insert(stages.end(), part->begin(), part->end());
    }
    return stages;
  }

  [[nodiscard]] Stage stage(Begin begin, int state) const {
    Stage stage;
    stage.from = begin - 1;
    stage.to = state;
    stage.compute = stretches_.front().at(begin, state);
    stage.parameters = states_.between(begin, state, &State::parameters);
    stage.time = stage.compute;
    NodeSet nodes = states_.at(state).before;
    if (begin > 0) nodes -= states_.at(begin - 1).before;
    stage.nodes = nodes.nodes();
    return stage;
  }

  const StateGraph& states_;
  const Options& options_;
  int last_state_;
  std::vector<Stretches> stretches_;  // by level: what the level is given
  std::vector<LevelSolver> solvers_;
  KnownPlan known_;
  Result result_;
};

}  // namespace

Result optimize(const StateGraph& states, const Options& options) {
  validate(options);
  Optimizer whole(states, options);
  const StateGraph chain = chain_of(states);
  return whole.run(Optimizer(chain, options).bottleneck());
}

}  // namespace stagecraft::pipedream
