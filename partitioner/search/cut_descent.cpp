#include "partitioner/search/cut_descent.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace stagecraft::planning {
namespace {

/// Programs made after each other on the way down from one beginning.
constexpr int kProgramRounds = 10;
/// Beginnings from which it goes down.
constexpr std::size_t kStarts = 4;
/// Critical paths that new cuts are compared with.
constexpr std::size_t kMostPaths = 12;
/// Nanoseconds, about, of a stage's part of a path.
constexpr std::int64_t kPart = 8;
/// Work between two questions whether to go on.
constexpr std::int64_t kAskAfter = 1'000'000;
/// What a rank is kept below its cap where the order made for such cuts needed more, beside what it missed.
constexpr double kMargin = 0.002;
/// Single moves for which programs are made at a time, and of how many cuts moved about for how many.
constexpr std::size_t kMostMoves = 16, kMostShaken = 4;
constexpr int kShaken = 64, kScattered = 256;
/// Where nothing better was found for so many times what it took until then, nothing is hoped for; of a budget it
/// takes at least a part for that.
constexpr std::int64_t kDescentPatience = 4, kLeastOfBudget = 32;
/// Cuts are worth a program of their own if with the one there is they are behind by no more than this.
constexpr double kWorthMaking = 0.01;

}  // namespace

CutDescent::CutDescent(const CutDescentProblem& problem, ProgramPricer& pricer)
    : problem_(problem),
      pricer_(pricer),
      layers_(problem.costs.chain().layers()),
      stages_(problem.costs.stages()) {}

std::optional<CutDescent::Cuts> CutDescent::moved(const Cuts& cuts, const Move& move) const {
  Cuts shifted = cuts;
  const ChainCosts& chain = problem_.costs.chain();
  const auto until = [&](int layer) { return chain.compute(0, layer); };
  const auto low = to_size(move.low);
  const auto high = to_size(move.high);
  const std::size_t edge = move.by > 0 ? low : high;
  const int to = cuts[edge] + move.by;
  if (to < 1 || to >= problem_.cuttable) return std::nullopt;
  const double time = until(to) - until(cuts[edge]);
  for (std::size_t c = low; c <= high; ++c) {
    if (c == edge || !move.timed) {
      shifted[c] = cuts[c] + move.by;
      continue;
    }
    const double wanted = until(cuts[c]) + time;
    int layer = cuts[c];
    const int step = move.by > 0 ? 1 : -1;
    while (layer + step >= 1 && layer + step < problem_.cuttable &&
           std::abs(until(layer + step) - wanted) < std::abs(until(layer) - wanted))
      layer += step;
    shifted[c] = layer;
  }
  const std::size_t begin = low == 0 ? 0 : low - 1;
  const std::size_t end = std::min(high + 1, shifted.size() - 1);
  if (shifted.front() < 1 || shifted.back() >= problem_.cuttable) return std::nullopt;
  for (std::size_t c = begin; c < end; ++c) {
    if (shifted[c] >= shifted[c + 1]) return std::nullopt;
  }
  if (shifted == cuts) return std::nullopt;
  return shifted;
}

/// All of one stride, in an order that is random, but the same every time.
std::vector<CutDescent::Move> CutDescent::moves(int stride) {
  std::vector<Move> all;
  for (int low = 0; low + 1 < stages_; ++low) {
    for (int high = low; high + 1 < stages_; ++high) {
      for (const int by : {stride, -stride}) {
        all.push_back({low, high, by, false});
        if (high > low) all.push_back({low, high, by, true});
      }
    }
  }
  for (std::size_t i = all.size(); i > 1; --i)
    std::swap(all[i - 1], all[to_size(random_below(static_cast<int>(i)))]);
  return all;
}

Bytes CutDescent::peak(std::size_t rank, const Cuts& cuts) {
  const PeakForms& forms = pricer_.peaks_as_made();
  std::vector<const StageCosts*> held;
  for (const StageId stage : forms.stages(rank)) {
    held.push_back(&problem_.stages.at(first(cuts, stage.value), last(cuts, stage.value)));
  }
  own_work_ += kPeakWork;
  return forms.peak(rank, held, pricer_.loss());
}

double CutDescent::missed(std::size_t rank, Bytes peak, bool with_margins) const {
  const auto cap = static_cast<double>(problem_.capacity->value);
  const double most = with_margins && rank < margins_.size() ? cap * (1 - margins_[rank]) : cap;
  const double share = (static_cast<double>(peak.value) - most) / cap;
  return share > 0 ? share * share : 0;
}

double CutDescent::over(const Cuts& cuts, bool with_margins) {
  if (!problem_.capacity) return 0;
  double sum = 0;
  for (std::size_t r = 0; r < pricer_.peaks_as_made().ranks(); ++r)
    sum += missed(r, peak(r, cuts), with_margins);
  return sum;
}

void CutDescent::fit(Cuts& cuts) {
  if (!problem_.capacity) return;
  const PeakForms& forms = pricer_.peaks_as_made();
  std::vector<std::size_t> rank_of(to_size(stages_), 0);
  std::vector<double> misses(forms.ranks(), 0);
  double sum = 0;
  for (std::size_t r = 0; r < forms.ranks(); ++r) {
    for (const StageId stage : forms.stages(r)) rank_of[stage.index()] = r;
    sum += misses[r] = missed(r, peak(r, cuts), true);
  }
  std::vector<std::pair<std::size_t, double>> changed;
  const auto accept = [&](const Move& move) {
    const int giver = move.by > 0 ? move.high + 1 : move.low;
    if (misses[rank_of[to_size(giver)]] == 0) return false;
    const auto next = moved(cuts, move);
    if (!next) return false;
    changed.clear();
    double with = sum;
    for (int s = move.low; s <= move.high + 1; ++s) {
      const std::size_t r = rank_of[to_size(s)];
      if (std::ranges::any_of(changed, [&](const auto& known) { return known.first == r; })) continue;
      changed.emplace_back(r, missed(r, peak(r, *next), true));
      with += changed.back().second - misses[r];
      if (changed.back().second > sum) return false;
    }
    if (!(with < sum * (1 - 1e-9))) return false;
    cuts = *next;
    sum = 0;
    for (const auto& [r, miss] : changed) misses[r] = miss;
    for (const double miss : misses) sum += miss;
    return true;
  };
  for (int stride = std::max(1, layers_ / stages_); stride >= 1 && sum > 0; stride /= 2) {
    for (bool again = true; again && sum > 0;) {
      again = false;
      for (const Move& move : moves(stride)) {
        if (out_of_budget()) return;
        again = accept(move) || again;
        if (sum == 0) return;
      }
    }
  }
}

void CutDescent::hasten(Cuts& cuts) {
  double seconds = pricer_.seconds_as_made(cuts);
  ++simulated_;
  const auto note = [&] {
    StepBound path = pricer_.path_as_made();
    if (paths_.size() < kMostPaths) {
      paths_.push_back(std::move(path));
    } else {
      paths_[next_path_++ % kMostPaths] = std::move(path);
    }
  };
  note();
  // Parts of the present cuts, by path and stage.
  std::vector<std::vector<double>> parts;
  std::vector<double> values;
  const auto take = [&] {
    parts.assign(paths_.size(), {});
    values.assign(paths_.size(), 0);
    for (std::size_t p = 0; p < paths_.size(); ++p) {
      values[p] = paths_[p].constant;
      for (int s = 0; s < stages_; ++s) {
        parts[p].push_back(
            problem_.costs.part(paths_[p], s, first(cuts, s), last(cuts, s), settings_[to_size(s)]));
        values[p] += parts[p].back();
      }
    }
    own_work_ += static_cast<std::int64_t>(paths_.size()) * stages_ * kPart;
  };
  take();
  std::vector<std::size_t> ranks;
  const auto try_move = [&](const Move& move) {
    const auto next = moved(cuts, move);
    if (!next) return false;
    for (std::size_t p = paths_.size(); p-- > 0;) {
      double value = values[p];
      for (int s = move.low; s <= move.high + 1; ++s) {
        value += problem_.costs.part(paths_[p], s, first(*next, s), last(*next, s), settings_[to_size(s)]) -
                 parts[p][to_size(s)];
      }
      own_work_ += (move.high + 2 - move.low) * kPart;
      if (value < seconds * (1 - 1e-9)) continue;
      if (p + 1 < paths_.size()) {  // it is likely to say so again
        std::swap(paths_[p], paths_.back());
        std::swap(parts[p], parts.back());
        std::swap(values[p], values.back());
      }
      return false;
    }
    if (problem_.capacity) {
      const PeakForms& forms = pricer_.peaks_as_made();
      for (std::size_t r = 0; r < forms.ranks(); ++r) {
        const bool touched = std::ranges::any_of(forms.stages(r), [&](StageId stage) {
          return stage.value >= move.low && stage.value <= move.high + 1;
        });
        if (touched && missed(r, peak(r, *next), true) > 0) return false;
      }
    }
    const double taken = pricer_.seconds_as_made(*next);
    ++simulated_;
    note();
    if (!(taken < seconds * (1 - 1e-9))) {
      take();
      return false;
    }
    seconds = taken;
    cuts = *next;
    take();
    return true;
  };
  for (int stride = std::max(1, layers_ / stages_ / 2); stride >= 1; stride /= 2) {
    for (bool again = true; again;) {
      again = false;
      for (const Move& move : moves(stride)) {
        if (out_of_budget()) return;
        again = try_move(move) || again;
      }
    }
  }
}

CutDescent::State CutDescent::price(const Cuts& cuts) {
  State state{cuts};
  auto settings = problem_.settings.least(cuts);
  if (!settings) settings = RecomputeSettings(to_size(stages_), problem_.settings.least_memory());
  while (settings) {
    settings_ = *settings;
    state.seconds = pricer_.seconds(cuts, settings_);
    if (!pricer_.one_program()) paths_.clear();  // another one has other bounds
    ++simulated_;
    state.over = 0;
    if (!problem_.capacity) break;
    const PeakForms& forms = pricer_.peaks_as_made();
    margins_.resize(forms.ranks(), 0);
    std::vector<Rank> refused;
    Bytes most;
    for (std::size_t r = 0; r < forms.ranks(); ++r) {
      const Bytes needs = peak(r, cuts);
      most = std::max(most, needs);
      const double miss = missed(r, needs, false);
      if (miss == 0) continue;
      state.over += miss;
      // Of pipelines that are alike the first stands for all.
      refused.push_back(problem_.costs.placement().ranks[forms.stages(r).front().index()].front());
    }
    if (most < least_.needs) least_ = {cuts, kInfinite, most};
    if (refused.empty()) break;
    settings = problem_.settings.after_refusal(cuts, settings_, refused);
  }
  if (state.better_than(best_)) {
    best_ = state;
    improved_at_ = spent();
    best_settings_ = settings_;
  }
  return state;
}

void CutDescent::climb(const Cuts& from) {
  margins_.clear();
  State now = price(from);
  for (int round = 0, failures = 0;
       round < kProgramRounds && failures < (now.over > 0 ? 4 : 2) && !out_of_budget(); ++round) {
    Cuts next = now.cuts;
    fit(next);
    if (over(next, true) == 0) hasten(next);
    if (next == now.cuts) return;
    State priced = price(next);
    if (problem_.capacity && priced.over > 0) {
      for (std::size_t r = 0; r < margins_.size(); ++r) {
        const double miss = missed(r, peak(r, next), false);
        if (miss > 0) margins_[r] += std::sqrt(miss) + kMargin;
      }
    }
    if (!priced.better_than(now)) ++failures;
    now = std::move(priced);
  }
}

/// Makes programs for the most promising of some cuts, by what they take with the program as it is made; whether
/// one is better than all before.
bool CutDescent::try_best(std::vector<Cuts> all, std::size_t most) {
  const State from = best_;
  std::vector<std::pair<double, std::size_t>> promising;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (out_of_budget()) return false;
    if (problem_.capacity && over(all[i], false) > 0) continue;
    const double seconds = pricer_.seconds_as_made(all[i]);
    ++simulated_;
    if (seconds < from.seconds * (1 + kWorthMaking)) promising.emplace_back(seconds, i);
  }
  std::ranges::sort(promising);
  std::size_t made = 0;
  for (const auto& [seconds, i] : promising) {
    if (made == most || out_of_budget()) return false;
    if (!tried_.insert(all[i]).second) continue;
    ++made;
    price(all[i]);
    if (best_.better_than(from)) return true;
  }
  return false;
}

/// Where each set of cuts has a program of its own: single moves from the best cuts, then several at once.
void CutDescent::polish() {
  if (best_.over > 0) return;
  for (bool again = true; again && !out_of_budget();) {
    price(best_.cuts);
    std::vector<Cuts> all;
    for (const int stride : {1, 2}) {
      for (const Move& move : moves(stride)) {
        if (auto next = moved(best_.cuts, move)) all.push_back(std::move(*next));
      }
    }
    again = try_best(std::move(all), kMostMoves);
    if (again) continue;
    all.clear();
    price(best_.cuts);
    for (int i = 0; i < kShaken; ++i) all.push_back(shaken(best_.cuts, 2));
    again = try_best(std::move(all), kMostShaken);
  }
}

CutDescent::Cuts CutDescent::shaken(Cuts cuts, int most_stride) {
  const int count = 1 + random_below(4);
  for (int i = 0; i < count; ++i) {
    const int low = random_below(stages_ - 1);
    const int high = low + random_below(stages_ - 1 - low);
    const int stride = 1 + random_below(std::max(1, most_stride));
    if (auto next = moved(cuts, {low, high, random_below(2) == 0 ? stride : -stride, random_below(2) == 0}))
      cuts = std::move(*next);
  }
  return cuts;
}

/// After equal shares of what layers have.
template <class Weight>
CutDescent::Cuts CutDescent::even_by(const Weight& weight) const {
  std::vector<double> until{0};
  for (int i = 0; i < layers_; ++i) until.push_back(until.back() + weight(i));
  Cuts cuts;
  int layer = 0;
  for (int s = 1; s < stages_; ++s) {
    const double wanted = until.back() * s / stages_;
    while (layer < layers_ &&
           std::abs(until[to_size(layer) + 1] - wanted) <= std::abs(until[to_size(layer)] - wanted))
      ++layer;
    const int least = cuts.empty() ? 1 : cuts.back() + 1;
    cuts.push_back(std::clamp(layer, least, problem_.cuttable - (stages_ - s)));
  }
  return cuts;
}

/// Even by what layers have of time, kept bytes and weights, each as a share of all.
CutDescent::Cuts CutDescent::mixed(double time, double kept, double weights) {
  if (shares_.empty()) {
    const ChainCosts& chain = problem_.costs.chain();
    std::array<double, 3> all{};
    for (int i = 0; i < layers_; ++i) {
      const StageCosts& one = problem_.stages.at(i, i + 1);
      shares_.push_back(
          {chain.compute(i, i + 1), static_cast<double>((one.kept_for_input + one.input).value),
           static_cast<double>((one.weights() + one.parameters + one.optimizer_state + one.buffers).value)});
      for (std::size_t k = 0; k < all.size(); ++k) all[k] += shares_.back()[k];
    }
    for (auto& layer : shares_) {
      for (std::size_t k = 0; k < all.size(); ++k) layer[k] = all[k] > 0 ? layer[k] / all[k] : 1.0 / layers_;
    }
  }
  return even_by([&](int i) {
    const auto& layer = shares_[to_size(i)];
    return time * layer[0] + kept * layer[1] + weights * layer[2];
  });
}

std::vector<CutDescent::Cuts> CutDescent::even_cuts() {
  std::vector<Cuts> all{mixed(1, 0, 0), even_by([](int) { return 1.0; })};
  for (const auto& [time, kept, weights] : {std::array{0.5, 0.5, 0.0},
                                            {0.0, 1.0, 0.0},
                                            {0.75, 0.25, 0.0},
                                            {0.25, 0.75, 0.0},
                                            {0.0, 0.5, 0.5},
                                            {0.0, 0.0, 1.0}})
    all.push_back(mixed(time, kept, weights));
  return all;
}

/// Appends where stages end that share the layers [first, last) so that the longest is as short as can be.
void CutDescent::add_min_max(int first, int last, int stages, Cuts& cuts) const {
  const ChainCosts& chain = problem_.costs.chain();
  Cuts ends;
  const auto within = [&](double most) {  // fills one stage after the other
    ends.clear();
    int begin = first;
    for (int left = stages; left > 1; --left) {
      const int latest = std::min(last, problem_.cuttable) - (left - 1);
      int end = begin + 1;
      while (end < latest && chain.compute(begin, end + 1) <= most) ++end;
      ends.push_back(begin = end);
    }
    return chain.compute(begin, last) <= most;
  };
  double low = 0, high = chain.compute(first, last);
  for (int round = 0; round < 40; ++round) {
    const double middle = (low + high) / 2;
    (within(middle) ? high : low) = middle;
  }
  (void)within(high);
  cuts.insert(cuts.end(), ends.begin(), ends.end());
}

/// With so many stages that are frozen, for each number: these as equal as can be, and the others. How many are best
/// depends on the schedule, and is another program each.
std::vector<CutDescent::Cuts> CutDescent::cuts_at_frozen() const {
  std::vector<Cuts> all;
  const int from = problem_.gradient_from;
  for (int frozen = 1; frozen < stages_; ++frozen) {
    if (from < frozen || problem_.cuttable - from < stages_ - frozen) continue;
    Cuts& cuts = all.emplace_back();
    add_min_max(0, from, frozen, cuts);
    cuts.push_back(from);
    add_min_max(from, layers_, stages_ - frozen, cuts);
  }
  return all;
}

/// Even by some mixture, every cut moved by up to a few layers.
CutDescent::Cuts CutDescent::scattered() {
  const double time = 0.25 * random_below(5);
  Cuts cuts = mixed(time, 1 - time, 0);
  const int reach = 1 + random_below(3);
  for (std::size_t c = 0; c < cuts.size(); ++c) {
    const int low = c == 0 ? 1 : cuts[c - 1] + 1;
    const int high = (c + 1 == cuts.size() ? problem_.cuttable : cuts[c + 1]) - 1;
    cuts[c] = std::clamp(cuts[c] + random_below(2 * reach + 1) - reach, low, std::max(low, high));
  }
  return cuts;
}

bool CutDescent::stalls_at(std::int64_t work) const {
  const bool timed = budget_.work == std::numeric_limits<std::int64_t>::max();
  const std::int64_t until = std::max({begun_at_, improved_at_, budget_.work / kLeastOfBudget});
  return !timed && begun_at_ > 0 && work > kDescentPatience * until;
}

bool CutDescent::out_of_budget() {
  if (stopped_) return true;
  if (problem_.first_that_fits && best_.over == 0 && best_.seconds < kInfinite) return stopped_ = true;
  const std::int64_t work = spent();
  if (work >= budget_.work || stalls_at(work)) return stopped_ = true;
  if (budget_.go_on && work >= asked_ + kAskAfter) {
    asked_ = work;
    stopped_ = !budget_.go_on();
  }
  return stopped_;
}

CutDescent::Result CutDescent::run(double to_beat, const CutSearchBudget& budget,
                                   const std::vector<Cuts>& seeds) {
  budget_ = budget;
  // NOLINTNEXTLINE(bugprone-random-generator-seed): the same request, the same cuts
  random_.seed(1 + static_cast<std::uint64_t>(budget.before.times));
  work_before_ = pricer_.work();
  best_ = {{}, kInfinite};
  if (stages_ > 1 && stages_ <= problem_.cuttable) {
    std::vector<State> starts;
    const auto start = [&](const Cuts& cuts) {
      if (std::ranges::any_of(starts, [&](const State& known) { return known.cuts == cuts; })) return;
      if (starts.empty() || !out_of_budget()) starts.push_back(price(cuts));
    };
    for (const Cuts& cuts : seeds) start(cuts);
    for (const Cuts& cuts : even_cuts()) start(cuts);
    const std::vector<Cuts> at_frozen = cuts_at_frozen();
    for (const Cuts& cuts : at_frozen) start(cuts);
    std::ranges::stable_sort(starts, [](const State& a, const State& b) { return a.better_than(b); });
    const std::size_t climbs = std::min(starts.size(), kStarts + at_frozen.size());
    for (std::size_t i = 0; i < climbs && !out_of_budget(); ++i) climb(starts[i].cuts);
    begun_at_ = spent();
    Cuts polished;
    while (!out_of_budget()) {
      if (problem_.orders_by_time && polished != best_.cuts) {
        polish();
        polished = best_.cuts;
      }
      if (problem_.orders_by_time && best_.over == 0 && !out_of_budget()) {
        price(best_.cuts);
        std::vector<Cuts> all;
        for (int i = 0; i < kScattered; ++i) all.push_back(scattered());
        if (try_best(std::move(all), kMostMoves)) continue;
      }
      if (!out_of_budget()) climb(shaken(best_.cuts, layers_ / stages_ / 2));
    }
  }
  Result result;
  if (best_.over == 0 && clearly_less(best_.seconds, to_beat)) {
    result.cuts = best_.cuts;
    result.settings = best_settings_;
    result.seconds = best_.seconds;
  }
  const bool fits = best_.over == 0 && best_.seconds < kInfinite;
  result.nearest = fits ? CutSearchResult::Nearest{best_.cuts, best_.seconds, {}} : least_;
  result.simulated = simulated_;
  result.work = spent();
  return result;
}

}  // namespace stagecraft::planning
