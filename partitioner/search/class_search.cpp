// The search over equally wide layouts, one stage per device, where there are too many to look at each: by
// classes. A class is a number of stages and of micro-batches on the busiest replica, with every number of replicas that
// comes to the same and every block. Best first by what is known of each:
//   1. of a class, what any order takes at least (equal_stages.h);
//   2. what the schedule's order takes;
//   3. of each of its layouts, with the links and all-reduces of where it lies; the cuts that come out are
//      simulated, by one of the layout's pipelines (replica_part.h);
//   4. the search over its cuts (cut_search.h), a longer one each time round.
// Whatever is not below the best step is done with. What remains when time is up bounds the best from below.

#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/equal_stages.h"
#include "partitioner/search/planning_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft::planning {
namespace {

/// Steps of effort: of a class, of a layout, and from where on cuts are searched.
constexpr int kByOrder = 1, kLayouts = 2, kPlaced = 3, kSearched = 4;
/// What has had more effort waits for others this much further from the best.
constexpr double kPatience = 0.01;
/// Layouts of a class that are looked at one by one; beyond, those with fewest replicas.
constexpr int kMostWidths = 16;
/// Nanoseconds per layer, about, for the bound of a class.
constexpr std::int64_t kBound = 500;
/// Nanoseconds of evaluating one (stage, first, last), and evaluations of each that a search of cuts takes at least.
constexpr double kEvaluation = 3, kEvaluations = 30;

class ClassSearch {
 public:
  explicit ClassSearch(PlanningRun& run)
      : run_(run),
        stages_({.chain = run.chain,
                 .network = run.network,
                 .speed = run.cluster.fastest(),
                 .devices = run.cluster.devices(),
                 .cuttable = run.maker.cuttable(),
                 .micro_batches = run.request.micro_batches,
                 .split = run.maker.splits_backwards(),
                 .repeated = allowed_settings(run.request.recompute).front(),
                 .frozen = run.gradient_from() > 0,
                 .goes_on = !run.request.schedule.agree_norm}),
        least_memory_(allowed_settings(run.request.recompute).back()) {
    double fixed = 0;
    double kept = 0;
    for (const LayerProfile& layer : run.maker.measurement().layers) {
      fixed_.push_back(fixed);
      kept_.push_back(kept);
      StageCosts own;
      own.parameters = layer.parameters;
      own.compute_copy = layer.compute_copy;
      own.buffers = layer.buffers;
      own.kept_for_input = layer.kept_for_input;
      const StageMemory memory(own, /*last_stage=*/false);
      fixed += static_cast<double>((memory.fixed + memory.version).value) +
               (layer.optimizer ? static_cast<double>(layer.optimizer->value)
                                : static_cast<double>(layer.parameters.value) * run.maker.optimizer_factor());
      kept += static_cast<double>(memory.activations.value);
    }
    fixed_.push_back(fixed);
    kept_.push_back(kept);
  }

  [[nodiscard]] StepProof search() {
    open_classes();
    while (!open_.empty() && !stops()) {
      run_.tell_progress();
      std::ranges::pop_heap(open_, std::greater{}, &Open::key);
      Open open = std::move(open_.back());
      open_.pop_back();
      if (clearly_less(open.bound, best())) raise(std::move(open));
    }
    for (const Open& open : open_) proof_.bound = std::min(proof_.bound, Seconds{open.bound});
    keep_best();
    if (run_.candidates.empty() && (!open_.empty() || left_out_)) run_.unproved = true;
    return proof_;
  }

 private:
  /// A class with what is known of its schedule's order, or one layout of it.
  struct Order {
    std::vector<StageOrder> stages;
    std::vector<StageCounts> stage_counts;
  };
  struct Open {
    double bound;
    int stages, replicas, widest;
    int effort = 0;
    std::optional<Layout> layout{};
    std::shared_ptr<const Order> order{};
    std::vector<int> cuts{};
    [[nodiscard]] double key() const { return bound * (1 + kPatience * std::max(0, effort - kPlaced)); }
  };
  struct Found {
    Layout layout;
    std::vector<int> cuts;
    RecomputeSettings settings;
    double seconds;
  };

  void open_classes() {
    const int micro_batches = run_.request.micro_batches;
    const int devices = run_.cluster.devices();
    const double compute = run_.chain.compute(0, run_.chain.layers()) / run_.cluster.fastest();
    for (int stages = 1; stages <= std::min(devices, run_.maker.cuttable()); ++stages) {
      if (run_.request.stages && *run_.request.stages != stages) continue;
      for (int replicas = 1; replicas * stages <= devices;) {
        const int count = own_count(micro_batches, 0, replicas);
        int widest = devices / stages;
        if (count > 1) widest = std::min(widest, (micro_batches - 1) / (count - 1));
        int blocks = 0;
        for (int block = 1; block <= stages; ++block) blocks += stages % block == 0 ? 1 : 0;
        proof_.layouts += to_size(widest - replicas + 1) * to_size(blocks);
        push({.bound = compute / stages * count, .stages = stages, .replicas = replicas, .widest = widest});
        replicas = widest + 1;
      }
    }
  }

  void push(Open open) {
    open_.push_back(std::move(open));
    std::ranges::push_heap(open_, std::greater{}, &Open::key);
  }

  [[nodiscard]] bool stops() const {
    if (run_.budget.over()) return true;
    // What is left is for stages of one device each, which need least.
    if (found_.empty() && run_.maker.capacity() && run_.budget.half_spent()) return true;
    if (found_.empty() || !run_.request.search.time_limit) return false;
    // The plan is still to be made and proved.
    return run_.budget.left() <=
           run_.budget.program_time(run_.request.micro_batches, found_.back().layout.stages());
  }

  [[nodiscard]] double best() const { return found_.empty() ? run_.best() : found_.back().seconds; }
  void raise(Open open) {
    if (open.effort >= kSearched) {
      search_cuts(std::move(open));
    } else if (open.effort == kPlaced) {
      raise_layout(std::move(open));
    } else if (open.effort == kLayouts) {
      open_layouts(open);
    } else {
      raise_by_order(std::move(open));
    }
  }

  /// First for any order, then for the schedule's.
  void raise_by_order(Open open) {
    if (open.effort == kByOrder && !run_.schedule.orders_by_time) {
      const Layout one = straight_layout(PlacementKind::straight, 1, open.stages);
      const int count = own_count(run_.request.micro_batches, 0, open.replicas);
      const ScheduleProgram program = run_.schedule.generate(
          run_.maker.schedule_request(one, {count}, RecomputeSettings(to_size(open.stages), least_memory_)));
      open.order = std::make_shared<Order>(Order{stage_orders(program), stage_counts(program)});
      run_.budget.take_program(count, open.stages);
    }
    const EqualStages::Fits fits =
        run_.maker.capacity() ? this->fits(open.order ? open.order->stage_counts : std::vector<StageCounts>())
                              : EqualStages::Fits{};
    const EqualStages::Shape shape{.stages = open.stages,
                                   .replicas = open.replicas,
                                   .orders = open.order ? &open.order->stages : nullptr,
                                   .fits = fits ? &fits : nullptr};
    const EqualStages::Least least = stages_.least(shape, best());
    run_.budget.take(kBound * run_.chain.layers());
    if (!least.cuts) return;
    open.bound = std::max(open.bound, least.bound);
    ++open.effort;
    push(std::move(open));
  }

  void open_layouts(const Open& open) {
    for (int replicas = open.replicas; replicas <= open.widest; ++replicas) {
      if (replicas - open.replicas == kMostWidths && replicas < open.widest) {
        left_out_ = true;
        // The widest is most likely to fill machines.
        proof_.bound = std::min(proof_.bound, Seconds{open.bound});
        replicas = open.widest;
      }
      for (int block = 1; block <= open.stages; ++block) {
        if (open.stages % block != 0 || (replicas == 1 && block > 1)) continue;
        Open one = open;
        one.effort = kPlaced;
        one.replicas = one.widest = replicas;
        one.layout =
            Layout{PlacementKind::straight, 1, std::vector<int>(to_size(open.stages), replicas), block};
        push(std::move(one));
      }
    }
  }

  void raise_layout(Open open) {
    const Layout& layout = *open.layout;
    const PlacedCosts placed(run_.chain, run_.network, layout.placement(), run_.cluster.speed);
    const StageSettings settings = run_.maker.settings(layout, run_.schedule, /*capped=*/true);
    const EqualStages::Fits possible = [&](int stage, int first, int last) {
      return settings.least(StageId{stage}, first, last).has_value();
    };
    EqualStages::Shape shape{.stages = open.stages,
                             .replicas = open.replicas,
                             .orders = open.order ? &open.order->stages : nullptr,
                             .placed = &placed};
    run_.budget.take(kBound * run_.chain.layers() + run_.cluster.devices());
    if (run_.maker.capacity()) {
      // What does not fit here is no bound's business, but nothing to begin with either.
      shape.fits = &possible;
      const EqualStages::Least begin = stages_.least(shape);
      if (begin.cuts) open.cuts = *begin.cuts;
    } else {
      const EqualStages::Least least = stages_.least(shape, best());
      open.bound = std::max(open.bound, least.bound);
      if (!least.cuts) return;
      open.cuts = *least.cuts;
    }
    if (!open.cuts.empty() || open.stages == 1) {
      const auto priced = run_.price(layout, open.cuts, best());
      run_.budget.take_program(own_count(run_.request.micro_batches, 0, open.replicas), open.stages);
      ++proof_.simulated;
      if (priced) found_.push_back({layout, open.cuts, priced->settings, priced->seconds});
    }
    ++open.effort;
    push(std::move(open));
  }

  void search_cuts(Open open) {
    const double layers = run_.chain.layers();
    const double nanoseconds = open.stages * layers * layers / 2 * kEvaluation * kEvaluations;
    if (!run_.budget.allows(nanoseconds)) {  // not even the beginning of it
      left_out_ = true;
      proof_.bound = std::min(proof_.bound, Seconds{open.bound});
      return;
    }
    const std::size_t share = open.effort == kSearched ? 16 : 4;
    const CutSearchResult found =
        run_.search_cuts(*open.layout, run_.schedule, best(), run_.share(share), {open.cuts}, true, true);
    run_.budget.take(found.work);
    proof_.simulated += found.simulated;
    open.bound = std::max(open.bound, found.bound);
    if (found.cuts) {
      found_.push_back({*open.layout, *found.cuts, found.settings, found.seconds});
      open.cuts = *found.cuts;
    }
    if (found.complete) {
      proof_.bound = std::min(proof_.bound, Seconds{open.bound});
      return;
    }
    ++open.effort;
    push(std::move(open));
  }

  /// What layers may be a stage, by what they need in any case.
  /// Weights, gradients, optimizer state and what layers keep for themselves; no boundaries, no transients.
  [[nodiscard]] EqualStages::Fits fits(std::vector<StageCounts> stage_counts) const {
    const auto capacity = static_cast<double>(run_.maker.capacity()->value);
    return [this, capacity, stage_counts = std::move(stage_counts)](int stage, int first, int last) {
      const int kept = stage_counts.empty() ? 0 : stage_counts[to_size(stage)].kept;
      const auto a = to_size(first);
      const auto b = to_size(last);
      return fixed_[b] - fixed_[a] + (kept_[b] - kept_[a]) * kept <= capacity * (1 + 1e-9);
    };
  }

  /// The whole program decides: whether it fits, and what it takes if the pipelines are not quite alike.
  void keep_best() {
    while (!found_.empty()) {
      const Found found = std::move(found_.back());
      found_.pop_back();
      proof_.bound = std::min(proof_.bound, Seconds{found.seconds});
      if (!clearly_less(found.seconds, run_.best())) break;
      PlanCandidate candidate =
          run_.maker.priced(found.layout, run_.maker.plan_of(found.layout, found.cuts, found.settings));
      run_.budget.take_program(run_.request.micro_batches, found.layout.stages());
      if (run_.maker.over_cap(candidate.plan).empty()) {
        run_.keep(std::move(candidate));
      } else {
        left_out_ = true;
      }
    }
    run_.finish(proof_);
  }

  PlanningRun& run_;
  EqualStages stages_;
  Recompute least_memory_;
  std::vector<double> fixed_, kept_;  // bytes of the layers before, on a device and of each in flight
  std::vector<Open> open_;            // a heap
  std::vector<Found> found_;          // each better than the one before
  bool left_out_ = false;             // something that may fit
  StepProof proof_{.bound = Seconds{kInfinite}, .whole_family = false};
};

}  // namespace

StepProof search_classes(PlanningRun& run) { return ClassSearch(run).search(); }

}  // namespace stagecraft::planning
