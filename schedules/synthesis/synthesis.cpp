#include "schedules/synthesis/synthesis.h"

#include "schedules/checker/checker.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/step_program.h"
#include "schedules/simulator/simulator.h"
#include "schedules/synthesis/critical_search.h"
#include "schedules/synthesis/least_memory.h"
#include "schedules/synthesis/seeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

using synthesis::Found;
using synthesis::Seed;

/// A program as the proof and the simulator see it.
struct ProvedProgram {
  ScheduleProgram program;
  std::string from;
  Seconds step;
  Bytes excess;  ///< of the rank that misses most; 0: fits
};

/// What fits goes before what does not, then the faster one.
bool before(const ProvedProgram& a, const ProvedProgram& b) {
  if (a.excess != b.excess && (a.excess > Bytes{} || b.excess > Bytes{})) return a.excess < b.excess;
  return a.step < b.step;
}

class Synthesizer {
 public:
  explicit Synthesizer(const SynthesisRequest& request)
      : request_(request),
        header_(make_header("auto", SegmentKind::train, request.placement, {request.micro_batches})),
        problem_(request.placement, request.micro_batches, request.clip, *request.costs, request.capacity,
                 request.recompute, request.part ? request.part->ranks : std::vector<Rank>(), request.goes_on,
                 request.gradient_from),
        pricing_(problem_),
        seeds_(problem_, pricing_) {}

  Synthesis run() {
    result_.bound = synthesis::lower_bound(problem_);
    find_impossible();
    judge_library();
    if (!result_.impossible && request_.budget.work > 0 && !none_is_faster()) {
      collect_seeds();
      search();
    }
    if (!best_) throw RefusedError(fmt::format("no program can be proved: {}", refusal(why_not_)));
    result_.program = std::move(best_->program);
    result_.program.schedule = "auto";
    result_.from = std::move(best_->from);
    result_.step = best_->step;
    result_.fits = best_->excess == Bytes{};
    result_.orders = pricing_.runs();
    return std::move(result_);
  }

 private:
  void find_impossible() {
    if (!problem_.capacity() || request_.gradient_from.value > 0) return;  // frozen stages keep less
    for (int r = 0; r < problem_.ranks(); ++r) {
      const Bytes needs = synthesis::least_memory(problem_, Rank{r});
      const bool most = !result_.impossible || needs > result_.impossible->needs;
      if (needs > *problem_.capacity() && most) result_.impossible = Impossible{Rank{r}, needs};
    }
  }

  void judge_library() {
    for (const auto& [name, program] : request_.library) {
      const auto judged = judge(program, name);
      if (!judged) continue;
      result_.library.push_back({name, judged->step, judged->excess == Bytes{}});
      library_.emplace_back(name, synthesis::orders_of(judged->program));
      offer(*judged);
    }
  }

  /// Whether the library has a program that fits and meets the bound.
  [[nodiscard]] bool none_is_faster() const {
    return best_ && best_->excess == Bytes{} && synthesis::meets(best_->step.value, result_.bound.seconds);
  }

  void collect_seeds() {
    for (const auto& [name, orders] : library_) seeds_.add_schedule(name, orders);
    if (request_.keeping) seeds_.add_keeping(request_.keeping);
    seeds_.add_one_at_a_time();
    seeds_.add_lists();
    for (const auto& [name, orders] : library_) {
      if (spent()) return;
      seeds_.add_squeezed(name, orders);
    }
    const auto go_on = [&] { return go_on_ && pricing_.work() < request_.budget.work / 3; };
    if (problem_.capacity()) seeds_.add_shared(go_on);
    seeds_.follow(2 * kStarts, go_on);
    if (holds_several()) add_patterns();
  }

  /// Ranks with several stages: the pattern of the steady state decides, which is not searched for by moving
  /// single computations. Patterns, and moves from the best of them, from which the next round begins.
  void add_patterns() {
    const auto computations = static_cast<std::int64_t>(problem_.computations());
    // Where only time ends the search, rounds begin short, and each is twice as long as the one before.
    const bool endless = request_.budget.work >= kEndless;
    std::int64_t work = endless ? kFirstOfEndless : request_.budget.work;
    const std::int64_t schedules = std::min(kMostPatterns, work * 2 / 5 / computations);
    const std::int64_t rounds =
        endless ? kEndless : std::clamp(kRoundsOfOne / computations, kLeastRounds, kMostRounds);
    std::uint64_t draws = 0;
    for (std::int64_t round = 0; round < rounds; ++round) {
      if (!told() || done(seeds_.best(1)) || hopeless(round == 0 ? kHopelessSeeds : kHopeless)) return;
      std::vector<Seed> found =
          seeds_.add_patterns(schedules, static_cast<std::uint64_t>(round), [&] { return told(); });
      found.resize(std::min(kFromRound, found.size()));
      for (Seed& seed : found) {
        if (done(seeds_.best(1))) return;
        follow_critical_paths(seed, work / 16, draws++);
        seeds_.add_found(seed);
      }
      if (endless) work = std::min(2 * work, kEndless);
    }
  }
  void follow_critical_paths(Seed& seed, std::int64_t work, std::uint64_t draws) {
    seed.found = synthesis::critical_search(problem_, pricing_, seed.found, limits(work, draws));
  }
  /// So far behind what there is to beat that more of the same will not do.
  [[nodiscard]] bool hopeless(double behind) const {
    const auto& beat = request_.budget.to_beat;
    const auto best = seeds_.best(1);
    return beat && !best.empty() && best.front().seconds() > behind * beat->value;
  }
  [[nodiscard]] bool holds_several() const {
    for (int r = 0; r < problem_.ranks(); ++r) {
      if (problem_.replicas_of(Rank{r}).size() > 1) return true;
    }
    return false;
  }
  /// Whether to go on, as asked of the budget's owner.
  bool told() {
    if (!request_.budget.go_on) return true;
    const auto best = seeds_.best(1);
    const double seconds = best.empty() ? synthesis::kNever : best.front().seconds();
    return go_on_ = go_on_ && request_.budget.go_on(Seconds{seconds});
  }

  void search() {
    std::vector<Seed> starts = seeds_.best(kStarts);
    if (starts.empty()) return;
    if (holds_several() && hopeless(kHopeless)) return offer_first(std::move(starts));
    if (holds_several() && !done(starts)) {
      follow_critical_paths(starts.front(), request_.budget.work / 4, kMostRounds * kFromRound);
    }
    const std::int64_t round = kRound * static_cast<std::int64_t>(problem_.computations());
    searched_before_ = holds_several() ? request_.budget.work / 8 * 7 : 0;
    const std::int64_t each = std::min(round, left() / 2 / static_cast<std::int64_t>(starts.size()));
    std::uint64_t draws = 0;
    for (Seed& start : starts) {
      if (!done(starts)) improve(start, each, draws++);
    }
    const auto best = std::min_element(starts.begin(), starts.end(), synthesis::cheaper);
    for (std::int64_t work = round; !done(starts); work *= 2) improve(*best, std::min(work, left()), draws++);
    offer_first(std::move(starts));
  }

  /// The first that the proof accepts; the others only if pricing was wrong about it.
  void offer_first(std::vector<Seed> starts) {
    std::stable_sort(starts.begin(), starts.end(), synthesis::cheaper);
    for (const Seed& seed : starts) {
      auto judged = judge(synchronous_program(header_, seed.found.orders, request_.clip), seed.name);
      if (!judged) continue;
      const bool fits = judged->excess == Bytes{};
      offer(std::move(*judged));
      if (fits) return;
    }
  }

  void improve(Seed& seed, std::int64_t work, std::uint64_t draws) {
    seed.found = synthesis::local_search(problem_, pricing_, seed.found, limits(work, draws));
  }

  [[nodiscard]] synthesis::SearchLimits limits(std::int64_t work, std::uint64_t draws) {
    synthesis::SearchLimits limits{.work = work, .bound = result_.bound.seconds, .draws = draws};
    if (request_.budget.go_on) {
      limits.go_on = [&](double seconds) {
        return go_on_ = go_on_ && request_.budget.go_on(Seconds{seconds});
      };
    }
    return limits;
  }

  /// Lowered, proved but for its memory, and simulated; nothing when the proof refuses it.
  [[nodiscard]] std::optional<ProvedProgram> judge(ScheduleProgram program, const std::string& from) {
    ScheduleProgram whole = program;
    complete(whole, request_.gradient_from, request_.recompute, request_.also_load, request_.ties);
    const LoweredProgram lowered = lower(whole);
    insert_recomputes(program, request_.recompute);
    const Proof proof = check(lowered, request_.costs);
    if (!proof.accepted()) {
      why_not_ = proof.findings;
      return std::nullopt;
    }
    Bytes excess;
    for (const MemoryProof& rank : proof.memory) {
      if (request_.capacity) excess = std::max(excess, rank.peak - *request_.capacity);
    }
    Simulator simulator = request_.part ? Simulator(lowered, *request_.part) : Simulator(lowered);
    const Seconds step =
        problem_.goes_on() ? simulator.cycle(*request_.costs) : simulator.run(*request_.costs).makespan;
    return ProvedProgram{std::move(program), from, step, excess};
  }

  void offer(ProvedProgram judged) {
    if (!best_ || before(judged, *best_)) best_ = std::move(judged);
  }

  [[nodiscard]] std::int64_t left() const {
    return std::max<std::int64_t>(0, request_.budget.work - searched_before_ - pricing_.work());
  }
  [[nodiscard]] bool spent() const { return left() == 0; }
  [[nodiscard]] bool done(const std::vector<Seed>& seeds) const {
    const auto& beat = request_.budget.to_beat;
    if (beat && result_.bound.seconds >= beat->value) return true;
    return spent() || !go_on_ || std::any_of(seeds.begin(), seeds.end(), [&](const Seed& seed) {
             return synthesis::meets(seed.seconds(), result_.bound.seconds);
           });
  }

  static constexpr std::size_t kStarts = 4;
  static constexpr std::int64_t kRound =
      2000;  ///< orders that the first rounds price, if the budget has so many

  static constexpr double kHopeless = 1.04;
  static constexpr double kHopelessSeeds = 1.3;  ///< patterns are hardly ever faster by so much than seeds
  static constexpr std::int64_t kEndless = std::int64_t{1} << 40U, kFirstOfEndless = 2'000'000;
  static constexpr std::int64_t kMostPatterns = 1000;
  static constexpr std::int64_t kRoundsOfOne = 8000, kLeastRounds = 2,
                                kMostRounds = 4;  ///< fewer of long orders
  static constexpr std::size_t kFromRound = 2;    ///< orders moved on from

  const SynthesisRequest& request_;
  ProgramHeader header_;
  synthesis::Problem problem_;
  synthesis::Pricing pricing_;
  synthesis::Seeds seeds_;
  Synthesis result_;
  std::vector<std::pair<std::string, Orders>> library_;
  std::optional<ProvedProgram> best_;
  std::vector<Finding> why_not_;      ///< of the last program that was refused for anything but its memory
  std::int64_t searched_before_ = 0;  ///< of the budget, by other means than pricing
  bool go_on_ = true;
};

}  // namespace

Synthesis synthesize(const SynthesisRequest& request) {
  STAGECRAFT_CHECK(request.costs != nullptr, "synthesis without costs");
  return Synthesizer(request).run();
}

}  // namespace stagecraft
