#include "schedules/generators/v_blocks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>

namespace stagecraft {
namespace {

constexpr int kPeriod = 6;  // slots that a micro-batch takes of a rank: three parts of two stages

// Parts of a micro-batch on a rank, in the order in which it comes by.
enum Part : std::uint8_t { kForward, kForwardBack, kInput, kInputBack, kWeight, kWeightBack };
constexpr int kPlaced = 4;  // parts that a block places
constexpr int kParts = 6;

/// Slots per rank on the way of a micro-batch, and slots to wait before its input gradients: before the first, and where
/// they turn.
struct Block {
  std::array<int, kPlaced> hops{};
  int before = 0;
  int turn = 0;
};

class Squeezer {
 public:
  Squeezer(int ranks, int micro_batches, int capacity)
      : ranks_(ranks), micro_batches_(micro_batches), capacity_(capacity), slots_(to_size(ranks)) {
    for (OfRank& rank : slots_) {
      for (auto& of_part : rank.slot) of_part.resize(to_size(micro_batches));
    }
  }

  /// Where parts of one rank's micro-batches would be in one slot, nothing.
  bool lay(const Block& block) {
    const int last = ranks_ - 1;
    int end = 0;
    for (int r = 0; r < ranks_; ++r) {
      const int back = last - r;
      std::array<int, kPlaced> first{};
      first[kForward] = r * block.hops[kForward];
      first[kForwardBack] = last * block.hops[kForward] + 1 + back * block.hops[kForwardBack];
      const int input = last * (block.hops[kForward] + block.hops[kForwardBack]) + 2 + block.before;
      first[kInput] = input + r * block.hops[kInput];
      first[kInputBack] = input + last * block.hops[kInput] + 1 + block.turn + back * block.hops[kInputBack];
      unsigned taken = 0;
      for (int part = 0; part < kPlaced; ++part) {
        const unsigned bit = 1U << static_cast<unsigned>(first[to_size(part)] % kPeriod);
        if ((taken & bit) != 0) return false;
        taken |= bit;
        for (int mb = 0; mb < micro_batches_; ++mb)
          slots_[to_size(r)].slot[to_size(part)][to_size(mb)] = first[to_size(part)] + kPeriod * mb;
        end = std::max(end, first[to_size(part)] + kPeriod * micro_batches_);
      }
    }
    length_ = end + 2 * micro_batches_ + 1;
    fill_weights(0);
    return most_kept() <= capacity_;
  }

  /// Every part as early as the memory and what it needs allow, in the order in which they are. Then at the end input
  /// gradients once more, to which weight gradients give way, if there is the memory.
  void squeeze() {
    squeeze_from(0, kParts);
    const std::vector<OfRank> once = slots_;
    const int from = slots_[0].slot[kForward].back() + 1;
    squeeze_from(from, kPlaced);
    fill_weights(from);
    if (most_kept() > capacity_) slots_ = once;
  }

  [[nodiscard]] int length() const {
    int end = 0;
    for (const OfRank& rank : slots_) {
      for (const auto& of_part : rank.slot) end = std::max(end, of_part.back());
    }
    return end;
  }

  /// Of the replica.
  void write(const Placement& placement, const VirtualStages& shape, int replica, Orders& orders) const {
    for (int r = 0; r < ranks_; ++r) {
      Order& order = orders[placement.ranks[to_size(r)][to_size(replica)].index()];
      for (const auto& [slot, part, mb] : in_order({r})) {
        const Op op = part < kInput ? Op::forward : part < kWeight ? Op::backward_input : Op::backward_weight;
        const bool first = part == kForward || part == kInputBack || part == kWeightBack;
        order.push_back({op, shape.stage(r, first ? 0 : 1), MicroBatch{mb * shape.replicas + replica}});
      }
    }
  }

 private:
  struct OfRank {
    std::array<std::vector<int>, kParts> slot;  // [part][micro-batch]
  };
  struct Placed {
    int slot = 0;
    int part = 0;
    int mb = 0;
    int rank = 0;
  };

  [[nodiscard]] std::vector<std::tuple<int, int, int>> in_order(std::vector<int> of) const {
    std::vector<std::tuple<int, int, int>> all;
    for (const int r : of) {
      for (int part = 0; part < kParts; ++part) {
        for (int mb = 0; mb < micro_batches_; ++mb)
          all.emplace_back(slots_[to_size(r)].slot[to_size(part)][to_size(mb)], part, mb);
      }
    }
    std::ranges::sort(all);
    return all;
  }

  /// The slot before which it cannot be.
  [[nodiscard]] int ready(const Placed& one) const {
    const auto slot_of = [&](int rank, int part, int mb) {
      return slots_[to_size(rank)].slot[to_size(part)][to_size(mb)];
    };
    int after = one.mb > 0 ? slot_of(one.rank, one.part, one.mb - 1) : -1;
    const auto behind = [&](int rank, int part) { after = std::max(after, slot_of(rank, part, one.mb)); };
    if (one.part >= kWeight) {
      behind(one.rank, one.part - 2);
    } else {
      if (one.part > kForward) behind(one.rank, one.part - 1);
      const int from = one.rank + (one.part == kForward || one.part == kInput ? -1 : 1);
      if (from >= 0 && from < ranks_) behind(from, one.part);
    }
    return after + 1;
  }

  /// From a slot on: all `kParts`, or of the `kPlaced` input gradients, while weight gradients have no slots.
  void squeeze_from(int from, int parts) {
    std::vector<Placed> all;
    for (int r = 0; r < ranks_; ++r) {
      for (int part = 0; part < kParts; ++part) {
        for (int mb = 0; mb < micro_batches_; ++mb)
          all.push_back({slots_[to_size(r)].slot[to_size(part)][to_size(mb)], part, mb, r});
      }
    }
    std::ranges::stable_sort(all, {}, &Placed::slot);
    find_kept();
    std::vector<std::vector<char>> taken(slots_.size(), std::vector<char>(to_size(length_), 0));
    for (const Placed& one : all) {
      if (one.part >= parts && one.slot >= from) continue;
      auto& here = taken[to_size(one.rank)];
      int slot = one.slot;
      const bool fixed = one.slot < from || (parts == kPlaced && one.part <= kForwardBack);
      if (!fixed) {
        for (int sooner = ready(one); sooner < one.slot; ++sooner) {
          if (here[to_size(sooner)] != 0 || !may_move(one, sooner)) continue;
          slot = sooner;
          break;
        }
      }
      here[to_size(slot)] = 1;
      move(one, slot);
    }
  }

  [[nodiscard]] bool may_move(const Placed& one, int slot) const {
    if (one.part > kForwardBack) return true;
    const auto& kept = kept_[to_size(one.rank)];
    return std::none_of(kept.begin() + slot, kept.begin() + one.slot, [&](int n) { return n >= capacity_; });
  }
  void move(const Placed& one, int slot) {
    auto& kept = kept_[to_size(one.rank)];
    slots_[to_size(one.rank)].slot[to_size(one.part)][to_size(one.mb)] = slot;
    if (one.part <= kForwardBack) {
      for (int i = slot; i < one.slot; ++i) ++kept[to_size(i)];
    } else if (one.part >= kWeight) {
      for (int i = slot + 1; i <= one.slot; ++i) --kept[to_size(i)];
    }
  }

  /// Weight gradients from a slot on: each as soon as there is an idle one, oldest first.
  void fill_weights(int from) {
    for (OfRank& rank : slots_) {
      std::vector<std::pair<int, int>> inputs;  // slot, part
      std::vector<char> taken(to_size(length_), 0);
      std::array<int, 2> done{};
      for (int part = 0; part < kParts; ++part) {
        for (const int slot : rank.slot[to_size(part)]) {
          if (part >= kWeight && slot >= from) continue;
          if (part >= kWeight && from == 0) continue;
          taken[to_size(slot)] = 1;
          if (part >= kWeight) ++done[to_size(part - kWeight)];
        }
      }
      for (const int part : {kInput, kInputBack}) {
        const auto& slots = rank.slot[to_size(part)];
        for (std::size_t mb = to_size(done[to_size(part - kInput)]); mb < slots.size(); ++mb)
          inputs.emplace_back(slots[mb], part);
      }
      std::ranges::sort(inputs);
      int slot = from;
      for (const auto& [input, part] : inputs) {
        slot = std::max(slot, input + 1);
        while (to_size(slot) < taken.size() && taken[to_size(slot)] != 0) ++slot;
        rank.slot[to_size(part) + 2][to_size(done[to_size(part - kInput)]++)] = slot++;
      }
      length_ = std::max(length_, slot + 1);
    }
  }

  void find_kept() {
    kept_.assign(slots_.size(), std::vector<int>(to_size(length_), 0));
    for (std::size_t r = 0; r < slots_.size(); ++r) {
      auto& kept = kept_[r];
      for (const int part : {kForward, kForwardBack}) {
        for (const int slot : slots_[r].slot[to_size(part)]) ++kept[to_size(slot)];
      }
      for (const int part : {kWeight, kWeightBack}) {
        for (const int slot : slots_[r].slot[to_size(part)]) --kept[to_size(slot) + 1];
      }
      for (std::size_t i = 1; i < kept.size(); ++i) kept[i] += kept[i - 1];
    }
  }
  int most_kept() {
    find_kept();
    int most = 0;
    for (const auto& kept : kept_) most = std::max(most, *std::ranges::max_element(kept));
    return most;
  }

  int ranks_;
  int micro_batches_;
  int capacity_;
  int length_ = 0;  // slots, all that are needed
  std::vector<OfRank> slots_;
  std::vector<std::vector<int>> kept_;  // [rank][slot]
};

/// The fastest few for a replica's own micro-batches.
std::vector<Squeezer> squeezed_blocks(int ranks, int micro_batches, int capacity) {
  constexpr std::size_t kFew = 4;
  constexpr int kMostHops = 2;
  std::vector<std::pair<int, Squeezer>> found;
  constexpr int kMostTurn = 2;
  for (int choice = 0; choice < 16 * kPeriod * kMostTurn; ++choice) {
    Block block{.before = choice / 16 % kPeriod, .turn = choice / (16 * kPeriod)};
    for (int part = 0; part < kPlaced; ++part) block.hops[to_size(part)] = 1 + (choice >> part) % kMostHops;
    Squeezer one(ranks, micro_batches, capacity);
    if (!one.lay(block)) continue;
    one.squeeze();
    const int length = one.length();
    found.emplace_back(length, std::move(one));
  }
  std::ranges::stable_sort(found, {}, &std::pair<int, Squeezer>::first);
  std::vector<Squeezer> few;
  for (auto& [length, one] : found) {
    if (few.size() < kFew) few.push_back(std::move(one));
  }
  return few;
}

}  // namespace

std::vector<Orders> v_block_orders(const Workload& workload, const VirtualStages& shape, int capacity) {
  std::vector<Orders> all;
  if (capacity >= 2 * shape.ranks) return all;
  for (int replica = 0; replica < shape.replicas; ++replica) {
    const int count = own_count(workload.micro_batches, replica, shape.replicas);
    if (count == 0) break;
    const std::vector<Squeezer> blocks = squeezed_blocks(shape.ranks, count, capacity);
    if (blocks.empty()) return {};
    if (replica == 0) all.assign(blocks.size(), Orders(to_size(workload.placement.world())));
    for (std::size_t i = 0; i < all.size(); ++i)
      blocks[std::min(i, blocks.size() - 1)].write(workload.placement, shape, replica, all[i]);
  }
  return all;
}

}  // namespace stagecraft
