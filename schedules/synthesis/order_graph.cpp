#include "schedules/synthesis/order_graph.h"

#include <algorithm>

namespace stagecraft::synthesis {
namespace {

constexpr std::size_t kForward = 0, kInput = 1, kWeight = 2, kNodeParts = 3;

constexpr double kSame = 1e-12;  // seconds

std::size_t part_of(Op op) { return op == Op::forward ? kForward : is_input_part(op) ? kInput : kWeight; }

}  // namespace

OrderGraph::OrderGraph(const Problem& problem)
    : problem_(problem),
      lists_(to_size(problem.ranks())),
      flush_(lists_.size(), 0),
      starts_(lists_.size(), 0),
      next_(lists_.size()) {
  const int last = problem.last_stage().value;
  nodes_.resize(kNodeParts * to_size(problem.stages()) * to_size(problem.micro_batches()));
  for (int s = 0; s <= last; ++s) {
    const StageId stage{s};
    for (int i = 0; i < problem.micro_batches(); ++i) {
      const MicroBatch mb{i};
      for (const Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
        Node& node = nodes_[at(part_of(op), stage, mb)];
        node.compute = {op, stage, mb};
        node.rank = static_cast<Index>(problem.replica(stage, mb).rank.index());
        node.seconds = problem.seconds(node.compute);
        if (op == Op::backward_input) node.seconds += problem.recompute_seconds(stage, mb);
      }
    }
  }
  for (int i = 0; i < problem.micro_batches(); ++i) {
    const MicroBatch mb{i};
    for (int s = 0; s < last; ++s) {
      const StageId before{s};
      const StageId behind{s + 1};
      connect(at(kForward, before, mb), at(kForward, behind, mb), problem.activation_seconds(behind, mb));
      // A recompute begins without the gradient.
      connect(at(kInput, behind, mb), at(kInput, before, mb),
              problem.gradient_seconds(before, mb) - problem.recompute_seconds(before, mb));
    }
    connect(at(kForward, StageId{last}, mb), at(kInput, StageId{last}, mb), 0);
  }
  if (problem.clip()) return;
  for (const TimedReplica& replica : problem.replicas()) flush_[replica.rank.index()] += replica.step;
}

void OrderGraph::connect(Index from, Index to, double hop) {
  nodes_[from].feeds = to;
  nodes_[from].until_needed = hop;
  nodes_[to].needs = from;
}

void OrderGraph::take(const Orders& orders) {
  for (std::size_t r = 0; r < lists_.size(); ++r) {
    auto& list = lists_[r];
    list.clear();
    for (const Compute& c : orders[r]) {
      list.push_back(at(part_of(c.op), c.stage, c.micro_batch));
      if (c.op == Op::backward) list.push_back(at(kWeight, c.stage, c.micro_batch));
    }
    for (std::size_t i = 0; i < list.size(); ++i) nodes_[list[i]].place = static_cast<Index>(i);
  }
  std::ranges::fill(starts_, 0);
  forget();
}

Order OrderGraph::order(std::size_t rank) const {
  Order order;
  order.reserve(lists_[rank].size());
  for (const std::size_t node : lists_[rank]) order.push_back(nodes_[node].compute);
  return order;
}

Orders OrderGraph::orders() const {
  Orders orders;
  for (std::size_t r = 0; r < lists_.size(); ++r) orders.push_back(order(r));
  return orders;
}

bool OrderGraph::evaluate() {
  if (!find_heads()) return false;
  find_tails();
  seconds_ = 0;
  for (std::size_t r = 0; r < lists_.size(); ++r) {
    if (lists_[r].empty()) continue;
    const Node& last = nodes_[lists_[r].back()];
    seconds_ = std::max(seconds_, last.head + last.seconds + flush_[r] - starts_[r]);
  }
  return true;
}

void OrderGraph::forget() {
  for (Node& node : nodes_) node.done = kNone;
  done_.clear();
  moved_.clear();
  tails_known_ = false;
}

/// What is done before anything that moved stays.
bool OrderGraph::find_heads() {
  std::size_t kept = done_.size();
  for (const auto& [rank, first, last] : moved_) {
    for (std::size_t place = first; place <= last; ++place)
      kept = std::min<std::size_t>(kept, nodes_[lists_[rank][place]].done);
  }
  for (std::size_t i = kept; i < done_.size(); ++i) nodes_[done_[i]].done = kNone;
  done_.resize(kept);
  std::ranges::fill(next_, 0);
  for (const Index node : done_) ++next_[nodes_[node].rank];
  runnable_.clear();
  for (std::size_t r = lists_.size(); r-- > 0;) runnable_.push_back(r);
  while (!runnable_.empty()) {
    const std::size_t rank = runnable_.back();
    runnable_.pop_back();
    const auto& list = lists_[rank];
    std::size_t& place = next_[rank];
    if (place == list.size()) continue;
    double free = end_before(rank, place, nodes_[list[place]]);
    for (; place < list.size(); ++place) {
      Node& node = nodes_[list[place]];
      double there = kNothing;  // arrival(node)
      if (node.needs != kNone) {
        const Node& other = nodes_[node.needs];
        if (other.done == kNone) break;
        there = other.head + other.seconds + other.until_needed;
      }
      node.head = std::max(free, there);
      free = node.head + node.seconds;
      node.done = static_cast<Index>(done_.size());
      done_.push_back(list[place]);
      if (node.feeds == kNone) continue;
      const Node& fed = nodes_[node.feeds];
      if (fed.rank != rank && next_[fed.rank] == fed.place) runnable_.push_back(fed.rank);
    }
  }
  return done_.size() == nodes_.size();
}

/// What is done behind all that moved keeps its tail.
void OrderGraph::find_tails() {
  std::size_t changed = tails_known_ ? 0 : done_.size();
  for (const auto& [rank, first, last] : moved_) {
    for (std::size_t place = first; place <= last; ++place)
      changed = std::max<std::size_t>(changed, nodes_[lists_[rank][place]].done + 1);
  }
  for (std::size_t i = changed; i-- > 0;) {
    Node& node = nodes_[done_[i]];
    node.tail = std::max(after(node.rank, node.place), onward(node));
  }
  moved_.clear();
  tails_known_ = true;
}

bool OrderGraph::settle() {
  constexpr int kSteps = 4;
  if (!problem_.goes_on()) return evaluate();
  double least = std::numeric_limits<double>::infinity();
  for (int step = 0; step < kSteps; ++step) {
    forget();
    if (!find_heads()) return false;
    double longest = 0;
    next_starts_ = starts_;
    for (std::size_t r = 0; r < lists_.size(); ++r) {
      if (lists_[r].empty()) continue;
      const Node& first = nodes_[lists_[r].front()];
      const Node& last = nodes_[lists_[r].back()];
      starts_[r] = first.head - asked_before(first);  // when it need not be there sooner
      next_starts_[r] = last.head + last.seconds + flush_[r];
      longest = std::max(longest, next_starts_[r] - starts_[r]);
    }
    if (longest < least) {
      least = longest;
      best_starts_ = starts_;
    }
    const double first = *std::ranges::min_element(next_starts_);
    for (std::size_t r = 0; r < lists_.size(); ++r) starts_[r] = next_starts_[r] - first;
  }
  starts_ = best_starts_;
  forget();
  return evaluate();
}

const std::vector<std::size_t>& OrderGraph::critical_path(Draws& draws) {
  path_.clear();
  Index node = kNone;
  std::size_t ways = 0;
  for (const auto& list : lists_) {
    if (list.empty()) continue;
    const Node& last = nodes_[list.back()];
    if (last.head + last.seconds + last.tail < seconds_ - kSame) continue;
    if (draws.below(++ways) == 0) node = list.back();
  }
  while (node != kNone) {
    path_.push_back(node);
    const Node& here = nodes_[node];
    const bool by_rank = here.place > 0 && end_before(here.rank, here.place, here) >= here.head - kSame;
    const bool by_stage = here.needs != kNone && arrival(here) >= here.head - kSame;
    if (by_rank && (!by_stage || draws.below(2) == 0)) {
      node = lists_[here.rank][here.place - 1];
    } else {
      node = by_stage ? here.needs : kNone;
    }
  }
  std::ranges::reverse(path_);
  return path_;
}

std::size_t OrderGraph::reach(std::size_t rank, std::size_t from, std::size_t to) const {
  const auto& list = lists_[rank];
  const Node& moved = nodes_[list[from]];
  std::size_t place = from;
  if (from < to) {
    while (place < to && !ordered(moved.compute, nodes_[list[place + 1]].compute)) ++place;
    // What has less behind it than what waits for the moved one cannot be waited for by that.
    for (; place > from && moved.feeds != kNone && nodes_[moved.feeds].rank != rank; --place) {
      const Node& passed = nodes_[list[place]];
      const Node& fed = nodes_[moved.feeds];
      if (passed.tail + passed.seconds >= fed.tail + fed.seconds) break;
    }
  } else {
    while (place > to && !ordered(nodes_[list[place - 1]].compute, moved.compute)) --place;
    for (; place < from && moved.needs != kNone && nodes_[moved.needs].rank != rank; ++place) {
      const Node& passed = nodes_[list[place]];
      const Node& needed = nodes_[moved.needs];
      if (passed.head + passed.seconds >= needed.head + needed.seconds) break;
    }
  }
  return place;
}

double OrderGraph::estimate(std::size_t rank, std::size_t from, std::size_t to) {
  const auto& list = lists_[rank];
  const std::size_t first = std::min(from, to);
  const std::size_t last = std::max(from, to);
  const auto moved_to = [&](std::size_t place) {  // the node that is there afterwards
    if (place == to) return list[from];
    return from < to ? list[place + 1] : list[place - 1];
  };
  heads_.clear();
  double now = end_before(rank, first, nodes_[moved_to(first)]);
  for (std::size_t place = first; place <= last; ++place) {
    const Node& node = nodes_[moved_to(place)];
    heads_.push_back(std::max(now, arrival(node)));
    now = heads_.back() + node.seconds;
  }
  double longest = 0;
  double behind = after(rank, last);
  for (std::size_t place = last + 1; place-- > first;) {
    const Node& node = nodes_[moved_to(place)];
    behind = std::max(behind, onward(node)) + node.seconds;
    longest = std::max(longest, heads_[place - first] + behind);
  }
  return longest;
}

void OrderGraph::move(std::size_t rank, std::size_t from, std::size_t to) {
  auto& list = lists_[rank];
  const auto place = [&](std::size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
  if (from < to) {
    std::rotate(place(from), place(from + 1), place(to + 1));
  } else {
    std::rotate(place(to), place(from), place(from + 1));
  }
  const Stretch moved{rank, std::min(from, to), std::max(from, to)};
  for (std::size_t i = moved.first; i <= moved.last; ++i) nodes_[list[i]].place = static_cast<Index>(i);
  moved_.push_back(moved);
}

}  // namespace stagecraft::synthesis
