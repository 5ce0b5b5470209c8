#include "stagecraft/partitioner/graph/graph_search.h"

#include "stagecraft/partitioner/compare_costs.h"
#include "stagecraft/partitioner/planning/occupancy.h"
#include "stagecraft/partitioner/planning/program_pricer.h"
#include "stagecraft/partitioner/planning/request_checks.h"
#include "stagecraft/schedules/costs/collectives.h"
#include "stagecraft/schedules/generators/registry.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

using namespace planning;

/// How near a layout's bottleneck bound is bisected before bounds are weighed, which goes further.
constexpr double kTolerance = 5e-3;
/// An asynchronous layout's bottleneck is the answer.
constexpr double kFineTolerance = 1e-9;
/// Rounds of weighing; of the game that finds the weights; and how many before nothing new means the end.
constexpr int kRounds = 30;
constexpr int kGameRounds = 1'000;
constexpr int kLeastRounds = 5;
constexpr std::size_t kMostRows = 64;
/// As many layouts share the work that is left, where more wait.
constexpr std::size_t kSharing = 8;
/// Downsets times stages of which a pass may keep values: some 20 bytes each.
constexpr std::int64_t kMostStates = 16'000'000;

/// An all-reduce of up to all parameters as a line that is nowhere above it: it is the lesser of two lines.
struct ReductionLine {
  double constant = 0;
  double seconds_per_byte = 0;

  ReductionLine(const Network& network, std::vector<Rank> members, double most_bytes) {
    if (members.size() < 2) return;
    std::ranges::sort(members);
    constant = all_reduce(network, members, Bytes{0}).time().value;
    if (!(most_bytes >= 1)) return;
    const double most = all_reduce(network, members, Bytes{std::llround(most_bytes)}).time().value;
    seconds_per_byte = std::max(0.0, (most - constant) / most_bytes);
  }
};

/// One layout of a synchronous schedule.
class StepSearch {
 public:
  StepSearch(const Downsets& downsets, const Schedule& schedule, const Network& network,
             const std::vector<double>& speed, const PlanRequest& request, const Layout& layout)
      : downsets_(downsets),
        schedule_(schedule),
        network_(network),
        speed_(speed),
        micro_batches_(request.micro_batches),
        placement_(layout.placement()),
        // Where it is left to the planner: no step is shorter for repeating something.
        program_request_(schedule_request(
            request.schedule, placement_, {request.micro_batches},
            RecomputeSettings(placement_.ranks.size(), request.recompute.value_or(Recompute::none)))) {
    const double parameters = downsets.sums(downsets.all()).parameters;
    for (const auto& ranks : placement_.ranks) reductions_.emplace_back(network, ranks, parameters);
    // What holds for any order does not depend on the layers.
    const ChainCosts chain(condensed({}));
    const PlacedCosts placed(chain, network_, placement_, speed_);
    const std::unique_ptr<planning::ProgramPricer> asked = pricer(placed);
    const bool split = asked->split();
    const OrderFreeBounds bounds = order_free_bounds(placed, micro_batches_, split, asked->goes_on());
    make_problem(bounds, split);
    rows_.push_back(bounds.chain);
    for (const OrderFreeBounds::Work& work : bounds.work) {
      if (rows_.size() + 2 > kMostRows / 2) break;
      rows_.push_back(work.to_tail);
      rows_.push_back(work.to_end);
    }
    own_rows_ = rows_.size();
  }

  /// The best found below `to_beat`, and what none is below.
  struct Found {
    std::optional<GraphCandidate> best;
    double bound = 0;
    std::int64_t work = 0;
  };
  /// Throws InputError where the schedule does not take the layout.
  /// `parts`: into how many the cuts are told apart at most; 0: no bounds are weighed.
  [[nodiscard]] Found run(double at_least, double to_beat, std::int64_t work, int parts) {
    found_ = {};
    to_beat_ = to_beat;
    most_work_ = work;
    if (parts == 0) {
      found_.bound = std::min(own_bound(at_least, {}), to_beat_);
      return found_;
    }
    std::multimap<double, CutWindows> open{{at_least, {}}};
    while (!open.empty() && open.begin()->first < to_beat_ * (1 - kRounding) && found_.work < most_work_ &&
           parts-- > 0) {
      const auto node = open.extract(open.begin());
      const double own = own_bound(node.key(), node.mapped());
      const double bound = own < to_beat_ ? weigh(own, node.mapped()) : to_beat_;
      if (!(bound < to_beat_ * (1 - kRounding))) continue;
      const auto [low, high] = halves(node.mapped());
      if (low.empty()) {  // nothing to tell the cuts apart by
        open.emplace(bound, node.mapped());
        break;
      }
      open.emplace(bound, low);
      open.emplace(bound, high);
    }
    found_.bound = open.empty() ? to_beat_ : std::min(to_beat_, open.begin()->first);
    return found_;
  }

 private:
  /// The stages as layers: times, parameters and boundaries.
  [[nodiscard]] Measurement condensed(const NestedCuts& cuts) const {
    Measurement measurement;
    for (int s = 0; s < placement_.stages(); ++s) {
      LayerProfile& layer = measurement.layers.emplace_back();
      if (cuts.empty() && placement_.stages() > 1) continue;
      const auto at = to_size(s);
      const int first = s == 0 ? 0 : cuts[at - 1];
      const int last = at == cuts.size() ? downsets_.all() : cuts[at];
      NodeSums held = downsets_.sums(last);
      held -= downsets_.sums(first);
      layer.forward.median = Seconds{std::max(0.0, held.forward)};
      layer.backward_input.median = Seconds{std::max(0.0, held.backward_input)};
      layer.backward_weight.median = Seconds{std::max(0.0, held.backward_weight)};
      layer.parameters = Bytes{std::llround(std::max(0.0, held.parameters))};
      layer.output = Bytes{std::llround(downsets_.crossing(last))};
    }
    return measurement;
  }

  void make_problem(const OrderFreeBounds& bounds, bool split) {
    for (std::size_t s = 0; s < placement_.ranks.size(); ++s) {
      std::vector<StageLine>& lines = problem_.lines.emplace_back();
      for (const auto part : {&OrderFreeBounds::Work::to_tail, &OrderFreeBounds::Work::to_end}) {
        const StepBound* busiest = bounds.busiest(s, part);
        StageLine& line = lines.emplace_back();
        if (busiest == nullptr) continue;
        line = own_part(busiest->stages[s], s);
        // Which of the stages before holds what is not known: as if all were in the one that counts least.
        for (std::size_t before = 0; before < s; ++before) {
          const StepBound::Stage& stage = busiest->stages[before];
          line.constant += stage.latency;
          line.before = before == 0
                            ? NodeFactors{stage.forward, stage.backward_input, stage.backward_weight, 0}
                            : NodeFactors{std::min(line.before.forward, stage.forward),
                                          std::min(line.before.backward_input, stage.backward_input),
                                          std::min(line.before.backward_weight, stage.backward_weight), 0};
        }
      }
    }
    double fastest = 1;
    if (!speed_.empty()) fastest = std::ranges::max(speed_);
    const NodeSums& all = downsets_.sums(downsets_.all());
    const double one = (all.forward + all.backward_input + (split ? 0 : all.backward_weight)) / fastest;
    problem_.boundary = [this, one](int stage, double bytes) { return one + link_time(stage, bytes); };
  }

  /// Of the link between two replicas: all it carries one after the other, and one gradient back; with one
  /// micro-batch's computations (which are before the first and behind the last) the step is no shorter.
  [[nodiscard]] double link_time(int stage, double bytes) const {
    const auto& from = placement_.ranks[to_size(stage) - 1];
    const auto& to = placement_.ranks[to_size(stage)];
    const auto period = static_cast<int>(std::lcm(from.size(), to.size()));
    double most = 0;
    for (int mb = 0; mb < std::min(period, micro_batches_); ++mb) {
      const Rank a = from[to_size(mb) % from.size()];
      const Rank b = to[to_size(mb) % to.size()];
      if (a == b) continue;
      const int carried = (micro_batches_ - mb + period - 1) / period;
      const Link link = network_.between(a, b);
      most = std::max(most, (carried + 1) * (link.latency.value + bytes / link.bytes_per_second));
    }
    return most;
  }

  [[nodiscard]] StageLine own_part(const StepBound::Stage& stage, std::size_t s) const {
    StageLine line;
    line.own = {stage.forwards(program_request_.recompute[s]), stage.backward_input, stage.backward_weight,
                stage.reductions * reductions_[s].seconds_per_byte};
    line.constant = stage.latency + stage.reductions * reductions_[s].constant;
    line.seconds_per_byte = stage.seconds_per_byte;
    return line;
  }
  [[nodiscard]] std::vector<StageLine> lines_of(const StepBound& bound) const {
    std::vector<StageLine> lines;
    for (std::size_t s = 0; s < bound.stages.size(); ++s) lines.push_back(own_part(bound.stages[s], s));
    lines.front().constant += bound.constant;
    return lines;
  }
  [[nodiscard]] double value(const StepBound& bound, const NestedCuts& cuts) const {
    const std::vector<StageLine> lines = lines_of(bound);
    double seconds = 0;
    for (std::size_t s = 0; s < lines.size(); ++s) {
      seconds += value_of(downsets_, lines[s], s == 0 ? 0 : cuts[s - 1],
                          s == cuts.size() ? downsets_.all() : cuts[s]);
    }
    return seconds;
  }

  [[nodiscard]] std::unique_ptr<ProgramPricer> pricer(const PlacedCosts& placed) const {
    return std::make_unique<ProgramPricer>(
        schedule_, program_request_, placed, std::nullopt,
        [&placed](int first, int last) { return placed.chain().stage(first, last); });
  }
  /// Simulates, unless that was done; the critical path becomes a bound. Whether the
  /// cuts are new within the windows looked at.
  bool look_at(const NestedCuts& cuts) {
    const bool came_up = std::ranges::find(came_up_, cuts) != came_up_.end();
    if (!came_up) came_up_.push_back(cuts);
    if (!seen_.insert(cuts).second) return !came_up;
    asked_.push_back(cuts);
    const ChainCosts chain(condensed(cuts));
    const PlacedCosts placed(chain, network_, placement_, speed_);
    const std::unique_ptr<ProgramPricer> pricer = this->pricer(placed);
    std::vector<int> stages(cuts.size());
    std::iota(stages.begin(), stages.end(), 1);
    const double seconds = pricer->seconds(stages, program_request_.recompute);
    found_.work += pricer->work();
    if (auto path = pricer->critical_path()) add_row(std::move(*path));
    if (seconds < to_beat_ * (1 - kRounding)) {
      to_beat_ = seconds;
      found_.best = GraphCandidate{{}, cuts, seconds};
    }
    return true;
  }
  void add_row(StepBound row) {
    if (rows_.size() < kMostRows) {
      rows_.push_back(std::move(row));
      return;
    }
    rows_[own_rows_ + next_replaced_++ % (kMostRows - own_rows_)] = std::move(row);
  }

  /// Of all cuts in the windows, by stages' own work; the cuts of the least are simulated.
  [[nodiscard]] double own_bound(double at_least, const CutWindows& windows) {
    problem_.windows = windows;
    const BottleneckResult own = least_bottleneck(downsets_, problem_, at_least, to_beat_, kTolerance);
    constexpr std::int64_t kPasses = 6;
    found_.work += (own.cuts ? kPasses : 1) * pass();
    came_up_.clear();
    if (!own.cuts) return to_beat_;
    for (const NestedCuts& cuts : asked_) {
      if (within(cuts, windows)) came_up_.push_back(cuts);
    }
    look_at(*own.cuts);
    return std::max(at_least, own.bound);
  }
  /// The work of going over all steps once.
  [[nodiscard]] std::int64_t pass() const {
    return static_cast<std::int64_t>(downsets_.steps()) * problem_.stages();
  }

  /// The bounds and the cuts that came up so far are a game: the mean of the bounds under the weights is to
  /// be high whatever the cuts. Its weights are good ones to ask all nested downsets with, which either are
  /// no better than that or bring up cuts that are new (Kelley, "The cutting-plane method", J. SIAM 8, 1960).
  [[nodiscard]] double weigh(double bound, const CutWindows& windows) {
    for (int round = 0; round < kRounds && found_.work < most_work_; ++round) {
      const std::vector<double> weights = weights_against(came_up_);
      found_.work += static_cast<std::int64_t>(kGameRounds * rows_.size() * came_up_.size());
      StepBound mean;
      for (std::size_t k = 0; k < rows_.size(); ++k) mean.add(rows_[k], weights[k]);
      const CheapestResult least = cheapest(downsets_, lines_of(mean), windows);
      found_.work += pass();
      if (least.seconds == kInfinite) return to_beat_;
      bound = std::max(bound, least.seconds * (1 - kRounding));
      if (bound >= to_beat_ * (1 - kRounding)) return bound;
      const std::size_t known = rows_.size();
      if (!look_at(least.cuts) && rows_.size() == known && round >= kLeastRounds) return bound;
    }
    return bound;
  }

  [[nodiscard]] bool within(const NestedCuts& cuts, const CutWindows& windows) const {
    for (std::size_t s = 0; s < windows.size(); ++s) {
      if (!windows[s].holds(downsets_.sums(cuts[s]).compute())) return false;
    }
    return true;
  }

  /// The windows in two, where the cuts that came up in them lie furthest apart; empty where they do not, or
  /// where no simulation would make the bounds of a half any better.
  [[nodiscard]] std::pair<CutWindows, CutWindows> halves(const CutWindows& windows) const {
    std::size_t widest = 0;
    CutWindow between{0, 0};
    for (std::size_t s = 0; s + 1 < placement_.ranks.size(); ++s) {
      CutWindow spread{kInfinite, 0};
      for (const NestedCuts& cuts : came_up_) {
        const double compute = downsets_.sums(cuts[s]).compute();
        spread = {std::min(spread.low, compute), std::max(spread.high, compute)};
      }
      if (!(spread.high - spread.low > between.high - between.low)) continue;
      widest = s;
      between = spread;
    }
    const double middle = between.low + (between.high - between.low) / 2;
    if (schedule_.orders_by_time || !(between.low < middle && middle < between.high)) return {};
    std::pair<CutWindows, CutWindows> halves{windows, windows};
    halves.first.resize(placement_.ranks.size() - 1);
    halves.second.resize(placement_.ranks.size() - 1);
    halves.first[widest].high = std::min(halves.first[widest].high, middle);
    halves.second[widest].low = std::max(halves.second[widest].low, std::nextafter(middle, kInfinite));
    return halves;
  }

  /// Of the rows against those cuts, by multiplicative weights (Freund & Schapire, GEB 29, 1999).
  [[nodiscard]] std::vector<double> weights_against(const std::vector<NestedCuts>& asked) const {
    const std::size_t rows = rows_.size();
    std::vector<std::vector<double>> values;  // per cuts: of every row
    double low = kInfinite;
    double high = 0;
    for (const NestedCuts& cuts : asked) {
      auto& of_rows = values.emplace_back();
      for (const StepBound& row : rows_) of_rows.push_back(value(row, cuts));
      low = std::min(low, std::ranges::min(of_rows));
      high = std::max(high, std::ranges::max(of_rows));
    }
    std::vector<double> weights(rows, 1.0 / static_cast<double>(rows));
    if (!(high > low)) return weights;
    const double rate = std::sqrt(8 * std::log(static_cast<double>(rows)) / kGameRounds);
    std::vector<double> mean(rows, 0);
    std::vector<double> gained(rows, 0);
    for (int round = 0; round < kGameRounds; ++round) {
      const std::vector<double>* worst = nullptr;
      double least = kInfinite;
      for (const std::vector<double>& of_rows : values) {
        const double seconds = std::inner_product(weights.begin(), weights.end(), of_rows.begin(), 0.0);
        if (seconds >= least) continue;
        least = seconds;
        worst = &of_rows;
      }
      for (std::size_t k = 0; k < rows; ++k) {
        mean[k] += weights[k] / kGameRounds;
        gained[k] += rate * ((*worst)[k] - low) / (high - low);
      }
      const double most = std::ranges::max(gained);
      double sum = 0;
      for (std::size_t k = 0; k < rows; ++k) sum += weights[k] = std::exp(gained[k] - most);
      for (double& weight : weights) weight /= sum;
    }
    return mean;
  }

  const Downsets& downsets_;
  const Schedule& schedule_;
  const Network& network_;
  const std::vector<double>& speed_;
  int micro_batches_;
  Placement placement_;
  ScheduleRequest program_request_;
  std::vector<ReductionLine> reductions_;
  BottleneckProblem problem_;
  std::vector<StepBound> rows_;
  std::size_t own_rows_ = 0;
  std::size_t next_replaced_ = 0;
  std::set<NestedCuts> seen_;
  std::vector<NestedCuts> asked_;    // the same in order
  std::vector<NestedCuts> came_up_;  // of them, those within the windows looked at
  std::int64_t most_work_ = 0;
  Found found_;
  double to_beat_ = 0;
};

/// Of an asynchronous schedule: what stages and boundaries are busy with a micro-batch.
BottleneckProblem occupancy_problem(const Downsets& downsets, const Network& network,
                                    const std::vector<double>& speed, int micro_batches,
                                    const Placement& placement) {
  BottleneckProblem problem;
  std::vector<BoundaryOccupancy> boundaries;
  const double parameters = downsets.sums(downsets.all()).parameters;
  for (std::size_t s = 0; s < placement.ranks.size(); ++s) {
    const double factor = 1 / stage_speed(placement.ranks[s], speed);
    const ReductionLine reduction(network, placement.ranks[s], parameters);
    StageLine line;
    line.own = {factor, factor, factor, reduction.seconds_per_byte / micro_batches};
    line.constant = reduction.constant / micro_batches;
    problem.lines.push_back({line});
    if (s > 0) boundaries.emplace_back(network, placement.ranks[s - 1], placement.ranks[s]);
  }
  problem.boundary = [boundaries = std::move(boundaries)](int stage, double bytes) {
    return boundaries[to_size(stage) - 1].seconds(Bytes{std::llround(bytes)});
  };
  return problem;
}

Layouts layouts_of(const Schedule& schedule, const Cluster& cluster, const PlanRequest& request,
                   int most_stages) {
  const int stages_per_rank = request.virtual_stages.value_or(schedule.virtual_stages);
  const RequestScope scope{request, cluster, schedule, most_stages};
  Layouts layouts;
  const bool wide = std::ranges::any_of(request.widths, [](int w) { return w > 1; });
  if (!wide) {
    check_request(scope, schedule.placement, stages_per_rank);
    for (const int stages : stage_counts(scope, stages_per_rank)) {
      layouts.list.push_back(straight_layout(schedule.placement, stages_per_rank, stages / stages_per_rank));
    }
  }
  const Layouts more = wide_layouts(scope);
  layouts.all = more.all;
  layouts.list.insert(layouts.list.end(), more.list.begin(), more.list.end());
  return layouts;
}

/// Seconds that a device of a stage with `replicas` replicas is busy with a second of the stage's work, at least:
/// in a step, or in the steady state with a micro-batch.
double busy(const Schedule& schedule, const PlanRequest& request, const Cluster& cluster, int replicas) {
  if (!schedule.synchronous) return 1 / (replicas * cluster.fastest());
  const int busiest = own_count(request.micro_batches, 0, replicas);
  return busiest / cluster.fastest();
}

/// Some stage's busiest device has at least its share of all compute.
double share_bound(const Schedule& schedule, const PlanRequest& request, const Cluster& cluster,
                   const Layout& layout, double compute) {
  double shares = 0;
  for (const int replicas : layout.widths) shares += 1 / busy(schedule, request, cluster, replicas);
  return compute / shares;
}

class GraphSearch {
 public:
  GraphSearch(const Downsets& downsets, const Cluster& cluster, const PlanRequest& request)
      : downsets_(downsets),
        cluster_(cluster),
        request_(request),
        schedule_(find_schedule(request.schedule.name)),
        network_(cluster.network()) {}

  [[nodiscard]] GraphSearchResult run(double to_beat, std::int64_t work) const {
    const Layouts family =
        layouts_of(schedule_, cluster_, request_, static_cast<int>(downsets_.blocks().size()));
    const double compute = downsets_.sums(downsets_.all()).compute();
    std::vector<Task> tasks;
    for (const Layout& layout : family.list) {
      tasks.push_back({&layout, share_bound(schedule_, request_, cluster_, layout, compute)});
    }
    GraphSearchResult result;
    result.whole_family = family.all;
    // Few stages first: those passes are short, and what they find leaves less of the others. Then bounds are
    // weighed for the layouts that may be better, the most promising first, then their cuts are told apart.
    std::ranges::stable_sort(tasks, {}, [](const Task& task) { return task.layout->stages(); });
    for (const int parts : {0, 1, std::numeric_limits<int>::max()}) {
      std::size_t waiting = tasks.size();
      for (Task& task : tasks) {
        const auto sharing = static_cast<std::int64_t>(std::min(waiting--, kSharing));
        const std::int64_t states = std::int64_t{downsets_.size()} * task.layout->stages();
        if (!(task.bound < to_beat * (1 - kRounding)) || work <= 0 || states > kMostStates) continue;
        const Effort effort{parts, parts == 0 ? work : work / sharing};
        std::optional<GraphCandidate> best =
            schedule_.synchronous ? by_step(task, to_beat, effort, work) : by_bottleneck(task, to_beat, work);
        if (!best) continue;
        best->layout = *task.layout;
        to_beat = std::min(to_beat, best->seconds);
        result.found.insert(result.found.begin(), std::move(*best));
      }
      if (!schedule_.synchronous) break;
      std::ranges::stable_sort(tasks, {}, &Task::bound);
    }
    result.bound = to_beat;
    for (const Task& task : tasks) result.bound = std::min(result.bound, task.bound);
    return result;
  }

 private:
  struct Task {
    const Layout* layout;
    double bound;  ///< of all its cuts
  };
  struct Effort {
    int parts;  ///< into which a layout's cuts may be told apart
    std::int64_t work;
  };
  /// The task's bound is raised, its work taken off.
  std::optional<GraphCandidate> by_step(Task& task, double to_beat, const Effort& effort,
                                        std::int64_t& work) const {
    try {
      StepSearch search(downsets_, schedule_, network_, cluster_.speed, request_, *task.layout);
      StepSearch::Found found = search.run(task.bound, to_beat, effort.work, effort.parts);
      work -= found.work;
      task.bound = std::max(task.bound, found.bound);
      return std::move(found.best);
    } catch (const InputError&) {  // not such a layout, says the schedule
      task.bound = kInfinite;
      return std::nullopt;
    }
  }

  std::optional<GraphCandidate> by_bottleneck(Task& task, double to_beat, std::int64_t& work) const {
    const BottleneckProblem problem = occupancy_problem(downsets_, network_, cluster_.speed,
                                                        request_.micro_batches, task.layout->placement());
    const BottleneckResult found = least_bottleneck(downsets_, problem, task.bound, to_beat, kFineTolerance);
    constexpr std::int64_t kPasses = 20;
    work -= static_cast<std::int64_t>(downsets_.steps()) * task.layout->stages() * (found.cuts ? kPasses : 1);
    task.bound = std::max(task.bound, found.bound);
    if (!found.cuts) return std::nullopt;
    return GraphCandidate{{}, *found.cuts, found.seconds};
  }

  const Downsets& downsets_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Schedule& schedule_;
  Network network_;
};

}  // namespace

double least_of_any_cuts(const LayerGraph& graph, const Cluster& cluster, const PlanRequest& request) {
  const Schedule& schedule = find_schedule(request.schedule.name);
  double compute = 0;
  double one = 0;  // one micro-batch forward and back
  double largest = 0;
  for (const LayerNode& node : graph.nodes) {
    compute += node.compute().value;
    one += (node.compute() - node.backward_weight()).value;
    largest = std::max(largest, node.compute().value);
  }
  // A searched schedule's several stages per device have no more than the device's time.
  if (schedule.searched) {
    return std::max(compute * request.micro_batches / (cluster.fastest() * cluster.devices()),
                    one / cluster.fastest());
  }
  double least = kInfinite;
  for (const Layout& layout :
       layouts_of(schedule, cluster, request, static_cast<int>(graph.nodes.size())).list) {
    const int widest = std::ranges::max(layout.widths);
    double bound = std::max(share_bound(schedule, request, cluster, layout, compute),
                            largest * busy(schedule, request, cluster, widest));
    if (schedule.synchronous) bound = std::max(bound, one / cluster.fastest());
    least = std::min(least, bound);
  }
  return least;
}

GraphSearchResult search_graph(const Downsets& downsets, const Cluster& cluster, const PlanRequest& request,
                               double to_beat, std::int64_t work) {
  return GraphSearch(downsets, cluster, request).run(to_beat, work);
}

}  // namespace stagecraft
