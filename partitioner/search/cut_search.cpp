#include "partitioner/search/cut_search.h"

#include "partitioner/plan/compare_costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stagecraft::planning {
namespace {

/// More bounds prune better and cost more at every cut; this many is where it stopped paying.
constexpr std::size_t kMostRows = 64;
/// Rounds of weighing; most of what they bring comes in the first dozens.
constexpr int kRounds = 80;
/// How fast weights follow: a bound that is a tenth below the highest loses a tenth of its weight a round.
constexpr double kRate = 1.0;
/// Work between two questions whether to go on, at most.
constexpr std::int64_t kAskEvery = 2'000'000;
/// A search goes on while the share of its branches that is done is at least the share of its work to this power: the
/// first branches are the largest, and later ones are cut off.
constexpr double kHope = 1.5;
/// What it may take is so many times what it has taken when that is first asked. It is asked again at each doubling.
constexpr std::int64_t kLookAhead = 16;

}  // namespace

CutSearch::CutSearch(const PlacedCosts& costs, const OrderFreeBounds& bounds, int cuttable,
                     StageSettings& settings)
    : costs_(costs),
      layers_(costs.chain().layers()),
      stages_(costs.stages()),
      cuttable_(cuttable),
      settings_(settings),
      fastest_(settings.fastest()),
      partial_(to_size(stages_) + 1),
      children_(to_size(stages_)) {
  for (auto& sums : partial_) sums.assign(kMostRows, 0);
  rows_.reserve(kMostRows);
  find_own_work(bounds);
  add(bounds.chain, true);
  // A rank's several stages are more than any of them.
  if (costs.placement().world() < stages_) {
    for (const OrderFreeBounds::Work& work : bounds.work) {
      if (rows_.size() + 1 >= kMostRows / 2) break;
      add(work.to_tail, true);
      add(work.to_end, true);
    }
  }
}

double CutSearch::part(const StepBound& bound, int stage, int first, int last, double limit) const {
  double seconds = costs_.part(bound, stage, first, last, fastest_);
  if (!(seconds < limit)) return kInfinite;
  const auto setting = this->setting(stage, first, last);
  if (!setting) return kInfinite;
  if (*setting != fastest_) seconds = costs_.part(bound, stage, first, last, *setting);
  if (!(seconds < limit)) return kInfinite;
  return seconds;
}

/// Two functions of (first, last) a stage, and the min-max partition of the largest of them over the stages
/// behind. Of the stages before it only its first layer is known: they take at least the smallest of their
/// factors times the layers' sums, and cross boundaries of at least the smallest size.
void CutSearch::find_own_work(const OrderFreeBounds& bounds) {
  const ChainCosts& chain = costs_.chain();
  struct Own {
    double before_forward = kInfinite, before_input = kInfinite, before_weight = kInfinite;
    double before_per_byte = 0, latency = 0, first_step = 0;
    StepBound::Stage stage;
  };
  std::vector<Own> own;
  for (int s = 0; s < stages_; ++s) {
    const auto at_stage = to_size(s);
    for (const auto bound : {&OrderFreeBounds::Work::to_tail, &OrderFreeBounds::Work::to_end}) {
      const StepBound* busiest = bounds.busiest(at_stage, bound);
      Own& made = own.emplace_back();
      if (busiest == nullptr || s == 0) made.before_forward = made.before_input = made.before_weight = 0;
      if (busiest == nullptr) continue;
      made.stage = busiest->stages[at_stage];
      made.latency = made.stage.latency;
      for (std::size_t before = 0; before < at_stage; ++before) {
        const StepBound::Stage& stage = busiest->stages[before];
        made.before_forward = std::min(made.before_forward, stage.forward);
        made.before_input = std::min(made.before_input, stage.backward_input);
        made.before_weight = std::min(made.before_weight, stage.backward_weight);
        made.before_per_byte += stage.seconds_per_byte;
        made.latency += stage.latency;
        if (before == 0) made.first_step = stage.step;
      }
      made.stage.latency = 0;
    }
  }
  std::vector<double> least_boundary(to_size(layers_) + 1, 0);  // of those into 1 .. i - 1
  for (int i = 2; i <= layers_; ++i) {
    const auto bytes = static_cast<double>(chain.boundary(i - 1).value);
    least_boundary[to_size(i)] = i == 2 ? bytes : std::min(least_boundary[to_size(i - 1)], bytes);
  }
  const auto value = [&](const Own& o, int first, int last, Recompute setting) {
    double seconds =
        o.before_forward * chain.forward(0, first) + o.before_input * chain.backward_input(0, first) +
        o.before_weight * chain.backward_weight(0, first) + o.latency +
        o.before_per_byte * least_boundary[to_size(first)] +
        o.stage.seconds_per_byte * static_cast<double>(chain.boundary(first).value) +
        o.stage.forwards(setting) * chain.forward(first, last) +
        o.stage.backward_input * chain.backward_input(first, last) +
        o.stage.backward_weight * chain.backward_weight(first, last) + o.stage.step * chain.step(first, last);
    if (first > 0) seconds += o.first_step * chain.step(0, 1);
    return seconds;
  };
  own_work_.assign(at(stages_, 0), kInfinite);
  for (int s = stages_ - 1; s >= 0; --s) {
    const Own& to_tail = own[2 * to_size(s)];
    const Own& to_end = own[2 * to_size(s) + 1];
    for (int first = s; first <= (s == 0 ? 0 : latest(s - 1)); ++first) {
      double& least = own_work_[at(s, first)];
      for (int last = s + 1 == stages_ ? layers_ : first + 1;
           last <= (s + 1 == stages_ ? layers_ : latest(s)); ++last) {
        const auto of = [&](Recompute setting) {
          return std::max(value(to_tail, first, last, setting), value(to_end, first, last, setting));
        };
        double here = of(fastest_);
        if (here >= least) break;
        const auto setting = this->setting(s, first, last);
        if (!setting) continue;
        if (*setting != fastest_) here = of(*setting);
        least = std::min(least, s + 1 == stages_ ? here : std::max(here, own_work_[at(s + 1, last)]));
      }
    }
  }
}

double CutSearch::first_bound() const {
  return std::max(own_work_[0], rows_.front().rest[0] + rows_.front().bound.constant);
}

/// `choice`, if given, becomes the cuts of the least value.
void CutSearch::fill_rest(Row& row, std::vector<int>* choice) const {
  row.rest.assign(at(stages_, 0), kInfinite);
  std::vector<int> next;
  if (choice != nullptr) next.assign(at(stages_, 0), 0);
  for (int s = stages_ - 1; s >= 0; --s) {
    for (int first = s; first <= (s == 0 ? 0 : latest(s - 1)); ++first) {
      double& least = row.rest[at(s, first)];
      if (s + 1 == stages_) {
        least = part(row.bound, s, first, layers_, kInfinite);
        continue;
      }
      for (int last = first + 1; last <= latest(s); ++last) {
        const double rest = row.rest[at(s + 1, last)];
        if (!(rest < least)) continue;
        const double seconds = part(row.bound, s, first, last, least - rest) + rest;
        if (!(seconds < least)) continue;
        least = seconds;
        if (choice != nullptr) next[at(s, first)] = last;
      }
    }
  }
  if (choice == nullptr) return;
  choice->clear();
  if (row.rest[0] == kInfinite) return;
  for (int s = 0, first = 0; s + 1 < stages_; ++s) {
    first = next[at(s, first)];
    choice->push_back(first);
  }
}

void CutSearch::add(StepBound bound, bool keep) {
  std::size_t k = rows_.size();
  if (k < kMostRows) {
    rows_.emplace_back();
  } else {
    k = kept_rows_ + next_replaced_++ % (kMostRows - kept_rows_);
  }
  Row& row = rows_[k];
  row.bound = std::move(bound);
  fill_rest(row, nullptr);
  if (keep) {
    std::swap(rows_[k], rows_[kept_rows_]);
    ++kept_rows_;
  }
  result_.work += static_cast<std::int64_t>(stages_) * layers_ * layers_;
  // The cuts under way know nothing of it yet.
  for (std::size_t n : {k, keep ? kept_rows_ - 1 : k}) {
    double sum = rows_[n].bound.constant;
    partial_[0][n] = sum;
    int first = 0;
    for (std::size_t depth = 0; depth < cuts_.size(); ++depth) {
      sum += costs_.part(rows_[n].bound, static_cast<int>(depth), first, cuts_[depth], chosen_[depth]);
      partial_[depth + 1][n] = sum;
      first = cuts_[depth];
    }
  }
}

void CutSearch::look_at(const std::vector<int>& cuts) {
  if (seen_.contains(cuts)) return;
  std::optional<RecomputeSettings> settings = settings_.least(cuts);
  if (!settings) return;
  const std::int64_t before = pricer_->work();
  while (needs_more(cuts, *settings)) {
  }
  result_.work += pricer_->work() - before;
}

bool CutSearch::needs_more(const std::vector<int>& cuts, RecomputeSettings& settings) {
  const double seconds = pricer_->seconds(cuts, settings);
  ++result_.simulated;
  double known = 0;
  for (const Row& row : rows_) known = std::max(known, costs_.value(row.bound, cuts, settings));
  if (known < seconds * (1 - 1e-9)) {
    auto path = pricer_->critical_path();
    if (path && costs_.value(*path, cuts, settings) > known) add(std::move(*path), false);
  }
  if (!clearly_less(seconds, best_)) return false;
  const bool faster = !result_.cuts || clearly_less(seconds, result_.seconds);
  const Bytes memory = budget_.lightest ? pricer_->most_memory_as_made(cuts) : Bytes{};
  if (!faster && memory >= memory_) return false;
  const std::vector<Rank> over = pricer_->over_cap(cuts, settings);
  if (over.empty()) {
    best_ = result_.seconds = faster ? seconds : std::min(seconds, result_.seconds);
    if (budget_.lightest) best_ *= 1 + 3 * kRounding;
    memory_ = memory;
    result_.cuts = cuts;
    result_.settings = settings;
    return false;
  }
  auto next = settings_.after_refusal(cuts, settings, over);
  if (next) settings = std::move(*next);
  return next.has_value();
}

void CutSearch::weigh(int rounds) {
  std::vector<double> weights;
  Row mean;
  StepBound best;
  double most = 0;
  std::vector<int> cuts;
  std::vector<double> values;
  for (int round = 0; round < rounds && result_.work < budget_.look_ahead && !out_of_budget(); ++round) {
    const double fresh = weights.empty() ? 1.0 : std::ranges::max(weights);
    weights.resize(rows_.size(), fresh);
    double total = 0;
    for (const double weight : weights) total += weight;
    mean.bound = StepBound{};
    for (std::size_t k = 0; k < rows_.size(); ++k) mean.bound.add(rows_[k].bound, weights[k] / total);
    fill_rest(mean, &cuts);
    result_.work += static_cast<std::int64_t>(stages_) * layers_ * layers_;
    if (mean.rest[0] == kInfinite) return;  // no cuts are possible
    const double least = mean.rest[0] + mean.bound.constant;
    if (least > most) {
      most = least;
      best = mean.bound;
    }
    if (!clearly_less(most, best_)) break;
    look_at(cuts);
    seen_.insert(cuts);
    weights.resize(rows_.size(), std::ranges::max(weights));
    values.clear();
    const auto settings = settings_.least(cuts);
    for (const Row& row : rows_) {
      values.push_back(
          costs_.value(row.bound, cuts, settings.value_or(RecomputeSettings(cuts.size() + 1, fastest_))));
    }
    const double highest = std::ranges::max(values);
    if (!(highest > 0)) break;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      weights[k] = std::max(weights[k] / total * std::exp(kRate * (values[k] / highest - 1)), 1e-12);
    }
  }
  if (most > 0) add(std::move(best), kept_rows_ < kMostRows / 2);
}

/// Whether it is time to ask: not all the time, but soon where steps are long.
bool CutSearch::asks() {
  if (result_.work < asked_at_ + kAskEvery && ++asked_ % 64 != 0) return false;
  asked_at_ = result_.work;
  return true;
}

double CutSearch::done() const {
  double share = 1, sum = 0;
  for (std::size_t depth = 0; depth < child_.size(); ++depth) {
    share /= static_cast<double>(children_[depth].size());
    sum += share * static_cast<double>(child_[depth]);
  }
  return sum;
}

bool CutSearch::out_of_budget() {
  if (stopped_) return true;
  if (result_.work >= next_look_ && !child_.empty()) {
    const std::int64_t most = std::min(budget_.work / kLookAhead, budget_.look_ahead) * kLookAhead;
    const double spent = static_cast<double>(result_.work) / static_cast<double>(most);
    next_look_ = 2 * result_.work;
    stopped_ = done() < std::pow(spent, kHope);
    if (stopped_) return true;
  }
  stopped_ = result_.work >= budget_.work || (budget_.go_on && asks() && !budget_.go_on());
  return stopped_;
}

void CutSearch::descend(int stage, int first) {
  const auto depth = to_size(stage);
  if (stage + 1 == stages_) {
    look_at(cuts_);
    return;
  }
  std::vector<Child>& children = children_[depth];
  children.clear();
  const std::vector<double>& sums = partial_[depth];
  for (int last = first + 1; last <= latest(stage); ++last) {
    const auto bound_with = [&](Recompute setting) {
      double bound = own_work_[at(stage + 1, last)];
      for (std::size_t k = 0; k < rows_.size() && bound < best_; ++k) {
        const double rest = rows_[k].rest[at(stage + 1, last)];
        bound = std::max(bound, sums[k] + costs_.part(rows_[k].bound, stage, first, last, setting) + rest);
      }
      return bound;
    };
    double bound = bound_with(fastest_);
    if (!clearly_less(bound, best_)) continue;
    const auto setting = this->setting(stage, first, last);
    if (!setting) continue;
    if (*setting != fastest_) bound = bound_with(*setting);
    if (clearly_less(bound, best_)) children.push_back({bound, last, *setting});
  }
  result_.work += static_cast<std::int64_t>(rows_.size()) * (latest(stage) - first) * 4;
  std::ranges::sort(children, {}, [](const Child& child) { return std::pair(child.bound, child.last); });
  for (std::size_t n = 0; n < children.size(); ++n) {
    const Child child = children[n];
    if (!clearly_less(child.bound, best_)) return;
    child_.push_back(n);
    const bool stops = out_of_budget();
    child_.pop_back();
    if (stops) {
      open_ = std::min(open_, child.bound);
      return;
    }
    cuts_.push_back(child.last);
    chosen_.push_back(child.setting);
    child_.push_back(n);
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      partial_[depth + 1][k] = sums[k] + costs_.part(rows_[k].bound, stage, first, child.last, child.setting);
    }
    descend(stage + 1, child.last);
    child_.pop_back();
    cuts_.pop_back();
    chosen_.pop_back();
  }
}

CutSearchResult CutSearch::run(ProgramPricer& pricer, double to_beat, const CutSearchBudget& budget,
                               const std::vector<std::vector<int>>& seeds) {
  pricer_ = &pricer;
  budget_ = budget;
  next_look_ = budget.look_ahead;
  best_ = to_beat;
  open_ = kInfinite;
  if (clearly_less(first_bound(), best_)) {
    for (const std::vector<int>& cuts : seeds) {
      look_at(cuts);
      seen_.insert(cuts);
    }
    weigh(kRounds);
    double bound = own_work_[0];
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      partial_[0][k] = rows_[k].bound.constant;
      bound = std::max(bound, rows_[k].bound.constant + rows_[k].rest[0]);
    }
    if (clearly_less(bound, best_)) {
      if (out_of_budget()) {
        open_ = bound;
      } else {
        descend(0, 0);
      }
    }
  }
  result_.complete = !stopped_ || open_ >= best_;
  result_.bound = std::min(best_, open_);
  return result_;
}

}  // namespace stagecraft::planning
