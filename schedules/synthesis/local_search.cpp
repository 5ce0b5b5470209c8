#include "schedules/synthesis/local_search.h"

#include "base/draws.h"
#include "schedules/synthesis/lower_bound.h"
#include "schedules/synthesis/peak_memory.h"

#include <algorithm>
#include <utility>

namespace stagecraft::synthesis {
namespace {

/// What is minimized, and of equal ones the one whose ranks are done earlier.
double cost(const Price& price) { return price.seconds + 0.01 * price.mean_end; }

bool better(const Price& a, const Price& b) {
  return a.seconds < b.seconds || (a.seconds == b.seconds && a.mean_end < b.mean_end);
}

/// Slides the computation at `from` towards `to`, up to the first one it must not pass. Where it ends.
std::size_t slide(Order& order, std::size_t from, std::size_t to) {
  while (from < to && !ordered(order[from], order[from + 1])) {
    std::swap(order[from], order[from + 1]);
    ++from;
  }
  while (from > to && !ordered(order[from], order[from - 1])) {
    std::swap(order[from], order[from - 1]);
    --from;
  }
  return from;
}

class Search {
 public:
  Search(const Problem& problem, Pricing& pricing, const Found& start, const SearchLimits& limits)
      : problem_(problem),
        pricing_(pricing),
        limits_(limits),
        draws_(limits.draws + 1),
        now_(start.orders),
        best_(start) {}

  Found run() {
    now_price_ = pricing_.run(now_);
    find_critical();
    const std::int64_t begin = pricing_.work();
    for (std::int64_t tries = 0;; ++tries) {
      const std::int64_t spent = pricing_.work() - begin;
      if (spent >= limits_.work || meets(best_.price.seconds, limits_.bound)) break;
      if (tries % kAsk == 0 && limits_.go_on && !limits_.go_on(best_.price.seconds)) break;
      const double left = 1 - static_cast<double>(spent) / static_cast<double>(limits_.work);
      if (!step(kThreshold * left * left * now_price_.seconds)) {
        ++barren_;
        if (barren_ > kBarren) break;  // nothing can be moved at all
      } else {
        barren_ = 0;
      }
    }
    return std::move(best_);
  }

 private:
  static constexpr int kAsk = 64;
  static constexpr int kBarren = 1000;
  static constexpr double kThreshold = 0.01;  ///< harm accepted at first, of what is minimized

  /// One change, kept or taken back. False when the drawn one changes nothing.
  bool step(double threshold) {
    const std::size_t rank = choose_rank();
    Order& order = now_[rank];
    if (order.size() < 2) return false;
    before_ = order;
    if (!change(rank, order)) {
      order = before_;
      return false;
    }
    if (problem_.capacity() && peak_memory(problem_, Rank{rank}, order) > *problem_.capacity()) {
      order = before_;
      return true;
    }
    const Price& price = pricing_.run(now_);
    if (!price.finishes() || cost(price) > cost(now_price_) + threshold * draws_.fraction() ||
        (pricing_.extra_slots() > LoweringOptions{}.extra_slots &&
         !fits(problem_, now_, pricing_.extra_slots()))) {
      order = before_;
      return true;
    }
    now_price_ = price;
    find_critical();
    if (better(now_price_, best_.price)) best_ = {now_, now_price_};
    return true;
  }

  std::size_t choose_rank() {
    if (!critical_.empty() && draws_.below(2) == 0) {
      const auto [rank, place] = critical_[draws_.below(critical_.size())];
      chosen_ = place;
      return rank;
    }
    const std::size_t rank = draws_.below(now_.size());
    chosen_ = now_[rank].empty() ? 0 : draws_.below(now_[rank].size());
    return rank;
  }

  bool change(std::size_t rank, Order& order) {
    const std::size_t kind = draws_.below(10);
    if (kind < 5) return move(order);
    if (kind < 7) return fill(rank, order);
    if (kind < 9) return shift(order);
    return split_or_join(order);
  }

  /// One computation, a few places earlier or later: often near, seldom far.
  bool move(Order& order) {
    const std::size_t most = order.size() - 1;
    const std::size_t reach = std::min<std::size_t>(most, std::size_t{1} << draws_.below(6));
    const std::size_t distance = 1 + draws_.below(reach);
    const std::size_t to =
        draws_.below(2) == 0 ? std::min(most, chosen_ + distance) : chosen_ - std::min(chosen_, distance);
    return slide(order, chosen_, to) != chosen_;
  }

  /// Something later into the nearest idle gap before the chosen place.
  bool fill(std::size_t rank, Order& order) {
    const auto& gaps = gaps_[rank];
    if (gaps.empty()) return false;
    const std::size_t gap = gaps[draws_.below(gaps.size())];
    const std::size_t reach = std::min<std::size_t>(order.size() - gap - 1, 24);
    if (reach == 0) return false;
    const std::size_t from = gap + 1 + draws_.below(reach);
    return slide(order, from, gap) == gap;
  }

  /// A stretch of one stage's work of one kind, one place earlier or later each.
  bool shift(Order& order) {
    const Compute like = order[chosen_];
    const auto alike = [&](const Compute& c) { return c.op == like.op && c.stage == like.stage; };
    const std::size_t length = 2 + draws_.below(order.size());
    const std::size_t end = std::min(order.size(), chosen_ + length);
    bool changed = false;
    if (draws_.below(2) == 0) {
      for (std::size_t i = std::max<std::size_t>(chosen_, 1); i < end; ++i) {
        if (!alike(order[i]) || alike(order[i - 1]) || ordered(order[i - 1], order[i])) continue;
        std::swap(order[i - 1], order[i]);
        changed = true;
      }
    } else {
      for (std::size_t i = end - 1; i-- > chosen_;) {
        if (!alike(order[i]) || alike(order[i + 1]) || ordered(order[i], order[i + 1])) continue;
        std::swap(order[i], order[i + 1]);
        changed = true;
      }
    }
    return changed;
  }

  bool split_or_join(Order& order) {
    Compute& c = order[chosen_];
    const auto here = order.begin() + static_cast<std::ptrdiff_t>(chosen_);
    if (c.op == Op::backward) {
      c.op = Op::backward_input;
      order.insert(here + 1, {Op::backward_weight, c.stage, c.micro_batch});
      return true;
    }
    if (c.op != Op::backward_input || here + 1 == order.end()) return false;
    const Compute& next = *(here + 1);
    if (next.op != Op::backward_weight || next.stage != c.stage || next.micro_batch != c.micro_batch)
      return false;
    c.op = Op::backward;
    order.erase(here + 1);
    return true;
  }

  /// Reads gaps and the critical path off the last pricing, which is of `now_`.
  void find_critical() {
    gaps_.resize(now_.size());
    std::size_t last_rank = 0;
    const auto length = [&](std::size_t r) {
      const auto& ends = pricing_.ends(Rank{r});
      if (ends.empty()) return 0.0;
      return ends.back() - (problem_.goes_on() ? pricing_.begins(Rank{r}).front() : 0);
    };
    for (std::size_t r = 0; r < now_.size(); ++r) {
      const auto& begins = pricing_.begins(Rank{r});
      const auto& ends = pricing_.ends(Rank{r});
      gaps_[r].clear();
      for (std::size_t i = 0; i < begins.size(); ++i) {
        if (i == 0 && problem_.goes_on()) continue;  // the step before is there
        if (begins[i] > (i == 0 ? 0 : ends[i - 1])) gaps_[r].push_back(i);
      }
      if (length(r) > length(last_rank)) last_rank = r;
    }
    trace(last_rank);
  }

  /// From the last computation back to what each waited for.
  void trace(std::size_t rank) {
    critical_.clear();
    if (now_[rank].empty()) return;
    std::size_t place = now_[rank].size() - 1;
    for (;;) {
      critical_.emplace_back(rank, place);
      const double begin = pricing_.begins(Rank{rank})[place];
      if (place > 0 && pricing_.ends(Rank{rank})[place - 1] >= begin) {
        --place;
        continue;
      }
      const Compute c = now_[rank][place];
      const bool down = c.op == Op::forward;
      const int from = c.stage.value + (down ? -1 : 1);
      if (c.op == Op::backward_weight || from < 0 || from >= problem_.stages()) return;
      rank = problem_.replica(StageId{from}, c.micro_batch).rank.index();
      const auto made = std::find_if(now_[rank].begin(), now_[rank].end(), [&](const Compute& other) {
        return other.stage.value == from && other.micro_batch == c.micro_batch &&
               (down ? other.op == Op::forward : is_input_part(other.op));
      });
      place = to_size(made - now_[rank].begin());
    }
  }

  const Problem& problem_;
  Pricing& pricing_;
  const SearchLimits& limits_;
  Draws draws_;
  Orders now_;
  Price now_price_;
  Found best_;
  Order before_;
  std::size_t chosen_ = 0;                                     // a place on the chosen rank
  std::vector<std::vector<std::size_t>> gaps_;                 // per rank, what idle time is before
  std::vector<std::pair<std::size_t, std::size_t>> critical_;  // rank, place
  int barren_ = 0;
};

}  // namespace

Found local_search(const Problem& problem, Pricing& pricing, const Found& start, const SearchLimits& limits) {
  return Search(problem, pricing, start, limits).run();
}

}  // namespace stagecraft::synthesis
