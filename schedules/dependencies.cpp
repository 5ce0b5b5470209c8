#include "schedules/dependencies.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace stagecraft {
namespace {

constexpr std::int32_t kNone = -1;

/// Numbers all tags a program can have without gaps, so that matching needs no hashing.
class TagNumbers {
 public:
  explicit TagNumbers(const ProgramHeader& header)
      : stages_(header.placement.stages()),
        micro_batches_(header.micro_batches()),
        groups_(header.groups()),
        reporters_(header.placement.width(StageId{stages_ - 1})) {}

  [[nodiscard]] std::size_t size() const { return losses() + to_size(groups_) * to_size(reporters_); }

  /// `size()` when the program has no such transfer.
  [[nodiscard]] std::size_t of(const Tag& tag) const {
    if (tag.payload == Payload::loss) {
      const bool known = tag.from.value == stages_ - 1 && tag.to.value == 0 && tag.micro_batch.valid() &&
                         tag.micro_batch.value < groups_ && tag.index >= 0 && tag.index < reporters_;
      return known ? losses() + tag.micro_batch.index() * to_size(reporters_) + to_size(tag.index) : size();
    }
    const bool forward = tag.payload == Payload::activation;
    const std::int32_t boundary = forward ? tag.from.value : tag.to.value;  // the stage before it
    const bool known = boundary >= 0 && boundary + 1 < stages_ && tag.index == 0 &&
                       (forward ? tag.to : tag.from).value == boundary + 1 && tag.micro_batch.valid() &&
                       tag.micro_batch.value < micro_batches_;
    if (!known) return size();
    return (to_size(boundary) * 2 + (forward ? 0 : 1)) * to_size(micro_batches_) + tag.micro_batch.index();
  }

 private:
  static std::size_t to_size(std::int32_t n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] std::size_t losses() const { return to_size(stages_ - 1) * 2 * to_size(micro_batches_); }

  std::int32_t stages_;
  std::int32_t micro_batches_;
  std::int32_t groups_;
  std::int32_t reporters_;
};

struct Ends {
  std::int32_t post = kNone, wait_receive = kNone, send = kNone, wait_send = kNone;
};

bool is_collective(Op op) { return op == Op::agree_norm || op == Op::reduce; }

}  // namespace

Dependencies::Dependencies(const LoweredProgram& program) : first_{0} {
  for (const auto& list : program.ranks) {
    first_.push_back(first_.back() + static_cast<std::int32_t>(list.size()));
  }
  peer_.assign(static_cast<std::size_t>(first_.back()), kNone);
  match_transfers(program);
  match_collectives(program);
  sort(program);
}

Dependencies::Place Dependencies::place(std::int32_t node) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), node);
  const auto rank = static_cast<std::size_t>(after - first_.begin()) - 1;
  return {Rank{rank}, node - first_[rank]};
}

void Dependencies::match_transfers(const LoweredProgram& program) {
  const TagNumbers numbers(program);
  std::vector<Ends> ends(numbers.size());
  const auto where = [&](const Action& action, std::int32_t node) {
    const Place at = place(node);
    return fmt::format("rank {} [{}] {}", at.rank.value, at.index, describe_action(action));
  };
  // Two passes: the first finds both ends of every tag, the second connects them.
  const auto each_transfer = [&](const auto& visit) {
    std::int32_t node = 0;
    for (const auto& list : program.ranks) {
      for (const Action& action : list) {
        if (is_transfer(action.op)) visit(action, node);
        ++node;
      }
    }
  };
  const auto end_of = [](Ends& e, Op op) -> std::int32_t& {
    switch (op) {
      case Op::post_receive:
        return e.post;
      case Op::wait_receive:
        return e.wait_receive;
      case Op::start_send:
        return e.send;
      default:
        return e.wait_send;
    }
  };
  each_transfer([&](const Action& action, std::int32_t node) {
    const std::size_t number = numbers.of(action.tag);
    if (number == ends.size()) {
      problems_.push_back(where(action, node) + ": the program has no such transfer");
      return;
    }
    std::int32_t& end = end_of(ends[number], action.op);
    if (end != kNone) {
      problems_.push_back(where(action, node) + ": this was done before");
      return;
    }
    end = node;
  });
  each_transfer([&](const Action& action, std::int32_t node) {
    const std::size_t number = numbers.of(action.tag);
    if (number == ends.size()) return;
    Ends& e = ends[number];
    if (end_of(e, action.op) != node) return;
    const std::int32_t other = action.op == Op::start_send ? e.post : e.send;
    peer_[static_cast<std::size_t>(node)] = other;
    if (other == kNone) {
      problems_.push_back(where(action, node) + ": there is no " +
                          (action.op == Op::start_send ? "receive" : "send") + " of it");
    }
    if (action.op == Op::post_receive && e.wait_receive == kNone) {
      problems_.push_back(where(action, node) + ": it is never waited for");
    }
    if (action.op == Op::start_send && e.wait_send == kNone) {
      problems_.push_back(where(action, node) + ": it is never waited for");
    }
    if (action.op == Op::wait_receive && e.post == kNone) {
      problems_.push_back(where(action, node) + ": its receive is not posted");
    }
  });
}

void Dependencies::match_collectives(const LoweredProgram& program) {
  // The n-th occurrence on a rank meets the n-th on the others.
  using Key = std::tuple<Op, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Key, std::int32_t> numbers;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      const Action& action = program.ranks[r][i];
      if (!is_collective(action.op)) continue;
      const std::int32_t here = node(Rank{r}, static_cast<std::int32_t>(i));
      Key key{action.op, action.stage.value, action.group.value, 0};
      auto found = numbers.find(key);
      while (found != numbers.end() &&
             collectives_[static_cast<std::size_t>(found->second)].back() >= first_[r]) {
        ++std::get<3>(key);
        found = numbers.find(key);
      }
      if (found == numbers.end()) {
        found = numbers.emplace(key, collectives()).first;
        collectives_.emplace_back();
      }
      collectives_[static_cast<std::size_t>(found->second)].push_back(here);
      peer_[static_cast<std::size_t>(here)] = found->second;
    }
  }
  for (const auto& [key, number] : numbers) {
    const auto& here = members(number);
    std::vector<Rank> expected;
    const StageId stage{std::get<1>(key)};
    if (std::get<0>(key) == Op::agree_norm) {
      for (std::size_t r = 0; r < program.ranks.size(); ++r) expected.emplace_back(r);
    } else if (stage.valid() && stage.value < program.placement.stages()) {
      expected = program.placement.ranks[stage.index()];
      std::sort(expected.begin(), expected.end());
    }
    std::vector<Rank> came;
    for (const std::int32_t member : here) came.push_back(place(member).rank);
    const Place at = place(here.front());
    const std::string what = describe_action(action(program, here.front()));
    for (const Rank rank : expected) {
      if (std::find(came.begin(), came.end(), rank) == came.end()) {
        problems_.push_back(fmt::format("rank {} [{}] {}: rank {} has no part in it", at.rank.value, at.index,
                                        what, rank.value));
      }
    }
    for (const Rank rank : came) {
      if (std::find(expected.begin(), expected.end(), rank) == expected.end()) {
        problems_.push_back(fmt::format("rank {}: {} is not for this rank", rank.value, what));
      }
    }
  }
}

void Dependencies::sort(const LoweredProgram& program) {
  const auto at = [](std::int32_t n) { return static_cast<std::size_t>(n); };
  // Every rank runs until it stands still; what wakes it is known by the node it stands at.
  std::vector<std::int32_t> cursor(first_.begin(), first_.end() - 1);
  std::vector<bool> done(peer_.size(), false);
  std::vector<std::size_t> arrived(collectives_.size(), 0);
  std::vector<std::int32_t> waiter(peer_.size(), kNone);  // post -> its send, send -> its wait_receive
  std::vector<std::size_t> runnable;
  for (std::size_t r = program.ranks.size(); r-- > 0;) {
    runnable.push_back(r);
    for (std::int32_t n = first_[r]; n < first_[r + 1]; ++n) {
      const Op op = program.ranks[r][at(n - first_[r])].op;
      if ((op == Op::start_send || op == Op::wait_receive) && peer_[at(n)] != kNone) {
        waiter[at(peer_[at(n)])] = n;
      }
    }
  }
  order_.reserve(peer_.size());
  const auto wake = [&](std::int32_t n) {
    const auto rank = place(n).rank.index();
    if (cursor[rank] == n) runnable.push_back(rank);
  };
  while (!runnable.empty()) {
    const std::size_t r = runnable.back();
    runnable.pop_back();
    while (cursor[r] < first_[r + 1]) {
      const std::int32_t n = cursor[r];
      const Op op = program.ranks[r][at(n - first_[r])].op;
      if (is_collective(op)) {
        const auto& all = members(peer_[at(n)]);
        if (!done[at(n)]) ++arrived[at(peer_[at(n)])];
        done[at(n)] = true;  // has come; a rank may be looked at twice
        if (arrived[at(peer_[at(n)])] < all.size()) break;
        for (const std::int32_t member : all) {
          order_.push_back(member);
          const auto rank = place(member).rank.index();
          ++cursor[rank];
          if (rank != r) runnable.push_back(rank);
        }
        continue;
      }
      const bool waits = (op == Op::start_send || op == Op::wait_receive) && peer_[at(n)] != kNone;
      if (waits && !done[at(peer_[at(n)])]) break;
      done[at(n)] = true;
      order_.push_back(n);
      ++cursor[r];
      if (waiter[at(n)] != kNone) wake(waiter[at(n)]);
    }
  }
  if (!acyclic()) find_cycle(program, cursor);
}

const Action& Dependencies::action(const LoweredProgram& program, std::int32_t node) const {
  const Place at = place(node);
  return program.ranks[at.rank.index()][static_cast<std::size_t>(at.index)];
}

std::vector<std::int32_t> Dependencies::awaited(const LoweredProgram& program, std::int32_t node) const {
  const std::int32_t other = peer(node);
  if (other == kNone) return {};
  if (!is_collective(action(program, node).op)) return {other};
  return members(other);
}

void Dependencies::find_cycle(const LoweredProgram& program, const std::vector<std::int32_t>& stuck) {
  const std::size_t world = stuck.size();
  // Rank r, standing at stuck[r], waits for rank q if something it awaits lies behind stuck[q].
  std::vector<std::vector<std::size_t>> waits_for(world);
  for (std::size_t r = 0; r < world; ++r) {
    if (stuck[r] == first_[r + 1]) continue;
    for (const std::int32_t other : awaited(program, stuck[r])) {
      const std::size_t q = place(other).rank.index();
      const bool there = stuck[q] == other && is_collective(action(program, other).op);
      if (!there && stuck[q] <= other) waits_for[r].push_back(q);
    }
  }
  for (std::size_t start = 0; start < world; ++start) {
    std::vector<std::size_t> from(world, world);
    std::vector<std::size_t> queue{start};
    bool closed = false;
    for (std::size_t head = 0; head < queue.size() && !closed; ++head) {
      for (const std::size_t q : waits_for[queue[head]]) {
        if (from[q] != world) continue;
        from[q] = queue[head];
        if (q == start) {
          closed = true;
          break;
        }
        queue.push_back(q);
      }
    }
    if (!closed) continue;
    std::vector<std::int32_t> cycle;
    std::size_t q = start;
    do {
      q = from[q];
      cycle.push_back(stuck[q]);
    } while (q != start);
    std::reverse(cycle.begin(), cycle.end());
    if (cycle_.empty() || cycle.size() < cycle_.size()) cycle_ = std::move(cycle);
  }
}

std::vector<std::string> Dependencies::describe_cycle(const LoweredProgram& program) const {
  const auto text = [&](std::int32_t node) {
    const Place at = place(node);
    return fmt::format("rank {} [{}] {}", at.rank.value, at.index, describe_action(action(program, node)));
  };
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < cycle_.size(); ++i) {
    const std::int32_t next = cycle_[(i + 1) % cycle_.size()];
    const Rank next_rank = place(next).rank;
    for (const std::int32_t other : awaited(program, cycle_[i])) {
      if (place(other).rank != next_rank) continue;
      lines.push_back(fmt::format("{} waits for {}", text(cycle_[i]), text(other)));
      if (other != next) lines.back() += fmt::format(", behind {}", text(next));
    }
  }
  return lines;
}

}  // namespace stagecraft
