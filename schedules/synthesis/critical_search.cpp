#include "schedules/synthesis/critical_search.h"

#include "base/draws.h"
#include "schedules/synthesis/lower_bound.h"
#include "schedules/synthesis/order_graph.h"
#include "schedules/synthesis/peak_memory.h"

#include <algorithm>
#include <utility>

namespace stagecraft::synthesis {
namespace {

/// A computation of a rank from one place to another.
struct Move {
  std::size_t rank = 0;
  std::size_t from = 0;
  std::size_t to = 0;
  double seconds = 0;  ///< as estimated
};

class CriticalSearch {
 public:
  CriticalSearch(const Problem& problem, Pricing& pricing, const Found& start, const SearchLimits& limits)
      : problem_(problem),
        pricing_(pricing),
        limits_(limits),
        draws_(limits.draws + 1),
        graph_(problem),
        best_(start),
        no_earlier_(graph_.nodes(), 0),
        no_later_(graph_.nodes(), 0) {}

  Found run() {
    graph_.take(best_.orders);
    if (!graph_.settle()) return std::move(best_);
    double least = graph_.seconds();
    Orders least_orders = graph_.orders();
    if (!fits(problem_, least_orders)) return std::move(best_);
    const std::int64_t cost =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(graph_.nodes()) / kTimesCheaper);
    std::int64_t barren = 0;
    for (std::int64_t spent = 0; spent < limits_.work && !meets(least, limits_.bound); spent += cost) {
      ++now_;
      if (now_ % kAsk == 0 && limits_.go_on && !limits_.go_on(best_.price.seconds)) break;
      find_moves();
      if (moves_.empty() || !step(least)) break;
      if (graph_.seconds() < least) {
        Orders orders = graph_.orders();
        const Price& price = pricing_.run(orders);
        if (price.finishes() && fits(problem_, orders, pricing_.extra_slots())) {
          (void)graph_.settle();
          least = graph_.seconds();
          barren = 0;
          if (price.seconds < best_.price.seconds) best_ = {orders, price};
          least_orders = std::move(orders);
        }
      }
      if (++barren < kPatience) continue;
      barren = 0;
      graph_.take(least_orders);
      (void)graph_.settle();
      std::ranges::fill(no_earlier_, 0);
      std::ranges::fill(no_later_, 0);
      shake();
    }
    return std::move(best_);
  }

 private:
  static constexpr std::int64_t kTimesCheaper = 8;  ///< a pass over the graph than one of Pricing
  static constexpr std::int64_t kAsk = 64;
  static constexpr std::int64_t kPatience = 100;  ///< moves without a better order, before the best again
  static constexpr std::int64_t kLeastShaken = 4, kMostShaken = 20;  ///< moves at random from there
  static constexpr std::size_t kReach = 24;    ///< how far a move goes through a stretch
  static constexpr std::size_t kEndReach = 6;  ///< of the stretch's first and last themselves
  static constexpr int kTries = 12;            ///< moves that may turn out not to fit

  /// Into the stretches of one critical path.
  void find_moves() {
    moves_.clear();
    const std::vector<std::size_t>& path = graph_.critical_path(draws_);
    for (std::size_t i = 0; i < path.size();) {
      const std::size_t rank = graph_.rank(path[i]);
      const std::size_t first = graph_.place(path[i]);
      std::size_t last = first;
      for (++i; i < path.size() && graph_.rank(path[i]) == rank && graph_.place(path[i]) == last + 1; ++i)
        ++last;
      if (first == last) continue;
      for (std::size_t k = first + 1; k <= std::min(last, first + kReach); ++k) offer(rank, k, first);
      for (std::size_t k = std::max(last, first + kReach) - kReach; k < last; ++k) offer(rank, k, last);
      for (std::size_t k = first + 1; k <= std::min(last, first + kEndReach); ++k) offer(rank, first, k);
      for (std::size_t k = std::max(last, first + kEndReach) - kEndReach; k < last; ++k) offer(rank, last, k);
    }
    std::ranges::stable_sort(moves_, {}, &Move::seconds);
  }

  /// As far of the way as what is on it allows.
  void offer(std::size_t rank, std::size_t from, std::size_t to) {
    const std::size_t reached = graph_.reach(rank, from, to);
    if (reached != from) moves_.push_back({rank, from, reached, graph_.estimate(rank, from, reached)});
  }

  /// Makes the best move that is not forbidden and fits, or any that fits; false when none does.
  bool step(double least) {
    int tries = 0;
    for (const Move& move : moves_) {
      const std::size_t node = graph_.node(move.rank, move.from);
      const auto& until = move.to < move.from ? no_earlier_ : no_later_;
      if (until[node] > now_ && move.seconds >= least) continue;
      if (++tries > kTries) break;
      if (make(move)) return true;
    }
    for (tries = 0; tries < kTries; ++tries) {
      if (make(moves_[draws_.below(moves_.size())])) return true;
    }
    return false;
  }

  /// A few moves that are not chosen: from the same order the same search would lead back to it.
  void shake() {
    for (std::int64_t left = draws_.between(kLeastShaken, kMostShaken); left > 0; --left) {
      find_moves();
      if (moves_.empty()) return;
      (void)make(moves_[draws_.below(moves_.size())]);
    }
  }

  bool make(const Move& move) {
    graph_.move(move.rank, move.from, move.to);
    const Rank rank{move.rank};
    const auto& capacity = problem_.capacity();
    const bool fit = !capacity || peak_memory(problem_, rank, graph_.order(move.rank)) <= *capacity;
    if (fit && graph_.evaluate()) {
      auto& back = move.to < move.from ? no_later_ : no_earlier_;
      back[graph_.node(move.rank, move.to)] = now_ + draws_.between(8, 20);
      return true;
    }
    graph_.move(move.rank, move.to, move.from);
    if (fit) (void)graph_.evaluate();
    return false;
  }

  const Problem& problem_;
  Pricing& pricing_;
  const SearchLimits& limits_;
  Draws draws_;
  OrderGraph graph_;
  Found best_;
  std::vector<Move> moves_;
  std::int64_t now_ = 0;                  // moves made
  std::vector<std::int64_t> no_earlier_;  // [node] until when it may not move so
  std::vector<std::int64_t> no_later_;
};

}  // namespace

Found critical_search(const Problem& problem, Pricing& pricing, const Found& start,
                      const SearchLimits& limits) {
  return CriticalSearch(problem, pricing, start, limits).run();
}

}  // namespace stagecraft::synthesis
